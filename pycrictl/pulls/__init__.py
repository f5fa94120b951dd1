"""The model of pulls: layers, sums, rates, the time left. Pure: no IO and no clock."""
