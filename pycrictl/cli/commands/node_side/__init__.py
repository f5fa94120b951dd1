"""Commands for the node side: the proxy, and its pull limiter."""
