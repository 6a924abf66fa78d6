"""The command line: every command is a plain typed function, its options are the function's arguments."""
