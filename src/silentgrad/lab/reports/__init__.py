"""Reports of finished runs, made from their records alone."""

from silentgrad.lab.reports.run import write_report

__all__ = ["write_report"]
