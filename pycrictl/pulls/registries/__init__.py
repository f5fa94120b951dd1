"""Registries as the runtime of a node reaches them: mirrors, proxies, credentials, requests."""
