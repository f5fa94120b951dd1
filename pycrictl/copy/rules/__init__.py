"""What the words of a copy mean, what may be copied, and what a copy reports: pure."""
