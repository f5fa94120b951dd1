"""The client of ``runtime.v1``: calls, deadlines, errors, and what is done with them.

This room knows nothing of commands, tables or progress. Calls go by path; the messages come from
the generated code in ``_proto``.
"""
