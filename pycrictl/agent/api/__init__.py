"""How the API looks to its clients: names, discovery, schema, tables, selectors, refusals."""
