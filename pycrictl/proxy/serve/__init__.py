"""The proxy's listeners: its socket, its HTTP servers, and the tokens that open streams."""
