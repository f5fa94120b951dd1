"""The command line: options, commands, and the output of their results."""
