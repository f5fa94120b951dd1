"""The client of ``runtime.v1``: calls, deadlines, errors, and operations made of calls.

This package is independent of commands, tables and progress. Calls are made by path; the messages
come from the generated code in ``_proto``.
"""
