"""One module per command: parse, call one library function, show. No heavy imports at the top."""
