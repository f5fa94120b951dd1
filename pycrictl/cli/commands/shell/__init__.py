"""Commands for shells and editors: completion and JSON Schemas."""
