"""What only building needs: generators of the files that are committed and shipped."""
