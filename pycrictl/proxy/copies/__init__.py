"""The proxy's copies to and from containers (KEP-4582)."""
