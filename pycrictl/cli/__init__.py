"""The command line: options, commands, and what is shown of their results."""
