"""Results as text: formats, tables, documents, templates and displays."""
