"""Commands about pod sandboxes."""
