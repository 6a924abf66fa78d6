"""A check-up for any VAE: what is wrong with it, and what would help."""

from silentgrad.checkup.examination import check_loss, check_up
from silentgrad.checkup.findings import Advice, CheckUp, Finding
from silentgrad.checkup.tracking import Tracker

__all__ = ["Advice", "CheckUp", "Finding", "Tracker", "check_loss", "check_up"]
