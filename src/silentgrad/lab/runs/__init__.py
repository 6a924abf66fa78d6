"""Runs: the evaluation of their models, and what these have to beat."""
