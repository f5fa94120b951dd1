"""What the proxy counts and remembers: records of pulls, their history, metrics, traces."""
