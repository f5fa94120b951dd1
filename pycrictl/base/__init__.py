"""What every package may use: errors, units, settings, signals, services."""
