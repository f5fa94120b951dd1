"""Generated from proto/ by proto/generate.py, as protoc writes it."""
