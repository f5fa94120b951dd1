"""Who is authenticated, by what, and who may do what."""
