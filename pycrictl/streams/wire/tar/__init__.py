"""Tar archives, read strictly and written portably."""
