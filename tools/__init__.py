"""What building needs, above all generators of committed files, and what looks for faults."""
