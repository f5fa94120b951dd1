"""Archive transfer between a client and a node: one protocol in two forms, for both ends."""
