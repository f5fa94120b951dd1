"""Shell completion: the candidates shown when Tab is pressed."""
