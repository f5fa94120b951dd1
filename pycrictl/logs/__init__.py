"""Container logs as files of this node: choosing lines, reading, following."""
