"""The meaning of copy arguments, the rules for entries, and the outcomes of copies: pure."""
