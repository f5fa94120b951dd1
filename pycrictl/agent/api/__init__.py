"""How the API looks to its clients: names, schema, tables, queries, refusals."""
