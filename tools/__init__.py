"""Build tools, mainly generators of committed files, and programs that search for faults."""
