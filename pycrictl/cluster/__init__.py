"""The node in a cluster: its agent behind the API server, and kubectl's plugins."""
