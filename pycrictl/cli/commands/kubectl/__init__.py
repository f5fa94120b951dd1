"""Plugins of kubectl: what a workstation asks of the agents in a cluster."""
