"""The hosts of ``--host``: names, ranges, files and groups.

``USER@HOST:PORT`` and ``ssh://USER@HOST:PORT`` name one host, ``node[01-20]`` a range. ``@NAME`` is
a group, which is the file ``~/.config/pycrictl/hosts/NAME``, or else the file of that name; both
have hosts line by line, with comments after ``#``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.base.config import read_text
from pycrictl.base.errors import ConfigError, PycrictlError, UsageError, reason_of
from pycrictl.base.units import quote

MAX_HOSTS: Final = 1000
_MAX_DEPTH: Final = 8
_RANGE: Final = re.compile(r"\[(\d{1,9})-(\d{1,9})\]", re.ASCII)
_HOST: Final = re.compile(
    r"(?:ssh://)?(?:(?P<user>[\w.@+-]+)@)?(?P<name>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])"
    r"(?::(?P<port>\d{1,5}))?/?",
    re.ASCII,
)


class Host(NamedTuple):
    """A host as ssh takes it.

    Attributes:
        label: how it was typed, without ``ssh://``: the name in tables and messages.
        user: the user to log in as; if empty, the one that ssh's configuration names.
        name: an address, or a name of ssh's configuration.
        port: empty for that of ssh's configuration.
    """

    label: str
    user: str
    name: str
    port: str


def hosts_of(words: Iterable[str], environ: Mapping[str, str]) -> list[Host]:
    """Return the hosts that the values of ``--host`` name, each once, in their order."""
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~") / ".config"
    folder = Path(home).expanduser() / "pycrictl/hosts"
    labels = dict.fromkeys(label for word in words for label in _expanded(word, folder, 0))
    if len(labels) > MAX_HOSTS:
        raise UsageError(f"more than {MAX_HOSTS} hosts are named")
    if not labels:
        raise UsageError("no host is named", hint="is a script's variable not set?")
    return [_parsed(label) for label in labels]


def _parsed(text: str) -> Host:
    """Parse a single host; a name that ssh could take for an option is refused."""
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise UsageError(f"{quote(text)} is not a host", hint="write [USER@]HOST[:PORT]")
    label = text.removeprefix("ssh://").rstrip("/")
    return Host(label, match["user"] or "", match["name"].strip("[]"), match["port"] or "")


def _expanded(text: str, folder: Path, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{quote(text)}: groups and files name each other")
    for word in re.split(r"[,\s]+", text.strip()):
        if word.startswith("@"):
            for line in _lines(word[1:], folder):
                yield from _expanded(line.partition("#")[0], folder, depth + 1)
        elif word:
            yield from _range(word)


def _lines(name: str, folder: Path) -> list[str]:
    group = folder / name
    try:
        return read_text(str(group) if group.is_file() else name).splitlines()
    except (OSError, PycrictlError) as exc:
        reason, hint = reason_of(exc), f"groups are files in {folder}"
        raise ConfigError(f"cannot read {quote(name, 4096)}: {reason}", hint=hint) from None


def _range(word: str) -> Iterator[str]:
    """Yield the names of ``node[01-20]``, with as many digits as typed; other words unchanged."""
    if (match := _RANGE.search(word)) is None:
        yield word
        return
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MAX_HOSTS:
        raise UsageError(f"{quote(word)} is not a range", hint="write node[01-20]")
    for number in range(first, last + 1):
        text = str(number).zfill(len(match[1]))
        yield from _range(f"{word[: match.start()]}{text}{word[match.end() :]}")
