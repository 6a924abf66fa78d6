"""The folder of a run: what it holds, read and written."""
