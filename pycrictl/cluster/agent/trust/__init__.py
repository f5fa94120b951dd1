"""Authentication and authorization of the agent's clients, and its certificates."""
