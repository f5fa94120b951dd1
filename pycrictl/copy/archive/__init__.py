"""Trees as tar archives, both ways."""
