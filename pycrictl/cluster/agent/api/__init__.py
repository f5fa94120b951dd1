"""The API as clients see it: names, schema, tables, queries, refusals."""
