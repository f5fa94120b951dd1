"""Random and damaged input for all parsers of foreign data: ``make fuzz``."""
