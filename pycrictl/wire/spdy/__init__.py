"""SPDY/3.1 as runtimes speak it, a client's side."""
