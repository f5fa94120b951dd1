"""Commands about containers."""
