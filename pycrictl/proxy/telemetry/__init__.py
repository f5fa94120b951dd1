"""The proxy's records of pulls, their history and metrics."""
