"""One module a command: parse, call one library function, show. Nothing heavy at the top."""
