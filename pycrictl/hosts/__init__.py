"""Commands on other hosts over SSH, with nothing installed on them."""
