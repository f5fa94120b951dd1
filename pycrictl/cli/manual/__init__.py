"""The handwritten parts of the man pages, as data. Nothing that runs a command imports them."""
