"""File trees: the only code that accesses them, and how a copy is moved into place."""
