"""Black-box rules for servers that implement the proposals. See README.md here."""
