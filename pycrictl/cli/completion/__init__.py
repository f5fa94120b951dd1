"""What Tab is answered while somebody types a command."""
