"""The copies of a node, as a service: one life cycle behind every server that offers them."""
