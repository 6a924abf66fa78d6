"""The laboratory: data, training, experiments, reports and the command line. Needs the extra `silentgrad[lab]`."""
