"""Runs: their folders and records, and the evaluation of their models."""
