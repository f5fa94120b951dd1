"""The client of ``runtime.v1``: calls, deadlines, errors, and what is done with them.

This package is independent of commands, tables and progress. Calls are made by path; the messages
come from the generated code in ``_proto``.
"""
