"""Generator of the man pages, from the command tree and the prose in man/prose."""
