"""Random and damaged input for all that reads what others wrote: ``make fuzz``."""
