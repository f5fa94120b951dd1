"""Commands about the runtime and the configuration."""
