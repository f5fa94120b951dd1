"""The proxy's records of pulls, their history, metrics and traces."""
