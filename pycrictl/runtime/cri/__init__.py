"""The client of ``runtime.v1``: calls, deadlines, errors, and the operations built on them.

This package is independent of commands, tables and progress. Calls are made by path; the messages
come from the generated code in ``_proto``.
"""
