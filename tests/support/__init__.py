"""What tests of several packages need, by topic."""
