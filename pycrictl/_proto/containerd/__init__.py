"""Generated from proto/ by proto/generate.py: nothing here is written by hand."""
