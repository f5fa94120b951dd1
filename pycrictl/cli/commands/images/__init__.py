"""The commands about images."""
