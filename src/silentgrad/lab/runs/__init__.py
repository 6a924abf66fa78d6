"""Runs: their folders, and the records in them."""
