"""Trees in file systems: the only door to them, and how a copy gets its place."""
