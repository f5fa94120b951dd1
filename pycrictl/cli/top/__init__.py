"""The node on one screen: what is sick, what is pulled or waits, what the rest uses."""
