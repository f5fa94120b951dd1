"""What the proxy listens on: its socket, its stream server, and the tokens that open streams."""
