"""What only building and looking for faults need: generators of committed files, torture, the site."""
