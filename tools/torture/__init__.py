"""Programs that run for minutes: random kills, attacks, damaged input, all of it at once."""
