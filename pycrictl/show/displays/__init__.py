"""Displays of progress: bars, lines, JSON or nothing, for pulls and for copies.

``outlet`` chooses the form and the stream, ``pull_lines`` and ``copies`` open what was chosen. A
display of either has ``show`` (bring it up to a new state; to be called at a steady pace), ``note``
(one line; bars stay below it), ``end`` (how something ended that will not be shown again) and
``close`` (leave the final state and a usable terminal, also after Ctrl-C; idempotent). It is not
thread-safe.

Nothing that a display does ends a pull or a copy: when its terminal or pipe goes away, it falls
silent. Only the loss of a standard output that carries the command's result is raised.
"""
