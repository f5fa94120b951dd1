"""What of this machine travels with a command to a host, by command. Pure.

Files that a command reads or writes are the workstation's: small ones are sent with the command,
others are its standard input or output there. All other paths are the host's, such as ``--config``
and certificates. Options are spelled without dashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Travel(NamedTuple):
    """How the files of a command travel, and how it shares the terminal.

    Attributes:
        files: places of positionals that name small files.
        options: options that name a small file.
        input: spellings of an option whose file becomes standard input, and ``-`` its value.
        output: spellings of an option whose file gets standard output, and ``-`` its value.
        reads_input: options that make it read standard input; ``*`` for always.
        wants: why it needs a single host, if it does.
        merges_times: whether lines of several hosts are ordered by their times.
        is_live: options that make it run until Ctrl-C; ``*`` for always.
    """

    files: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    reads_input: tuple[str, ...] = ()
    wants: str = ""
    merges_times: bool = False
    is_live: tuple[str, ...] = ()


_TERMINAL: Final = "one terminal"
_WATCH: Final = ("watch", "w")

TRAVELS: Final[Mapping[str, Travel]] = {
    "attach": Travel(reads_input=("stdin", "i"), wants=_TERMINAL),
    # cp: an archive, as standard input or output of ``cp -`` there.
    "create": Travel(files=(1, 2)),
    "debug": Travel(reads_input=("*",), wants=_TERMINAL),
    "events": Travel(is_live=("*",)),
    "exec": Travel(reads_input=("interactive", "i")),
    "images": Travel(is_live=_WATCH),
    "load": Travel(input=("input", "i"), reads_input=("*",)),
    "logs": Travel(merges_times=True),
    "metricsp": Travel(is_live=_WATCH),
    "pods": Travel(is_live=_WATCH),
    "port-forward": Travel(wants="the ports of one host"),
    "ps": Travel(is_live=_WATCH),
    "pull": Travel(options=("pod-config",), input=("from",), reads_input=("username", "u")),
    "run": Travel(files=(0, 1)),
    "runp": Travel(files=(0,)),
    "save": Travel(output=("output", "o"), wants="one file to write"),
    "stats": Travel(is_live=_WATCH),
    "statsp": Travel(is_live=_WATCH),
    "why": Travel(is_live=_WATCH),
}
"""The commands that differ from the rest, with which nothing travels."""

NOTHING: Final = Travel()
