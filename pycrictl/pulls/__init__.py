"""Pulls as everybody sees them: layers, sums, rates, the time left. Pure: no IO and no clock."""
