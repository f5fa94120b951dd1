"""Container logs as files on this node: selecting lines, reading, following."""
