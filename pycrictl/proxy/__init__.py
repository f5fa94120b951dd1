"""The node side: a CRI proxy that adds pull progress, a pull limit and copies to any runtime."""
