"""Files that users write for pods and containers: reading, rules, schema, credentials."""
