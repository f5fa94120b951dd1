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
_WORD: Final = re.compile(r"[^,\s]+")
_RANGE: Final = re.compile(r"\[(\d{1,9})-(\d{1,9})\]", re.ASCII)
_HOST: Final = re.compile(  # a name that ssh could take for an option is none
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
    groups = Path(home).expanduser() / "pycrictl/hosts"
    labels: dict[str, None] = {}
    for word in _WORD.findall(" ".join(words)):
        names = _WORD.findall(_content(word[1:], groups)) if word.startswith("@") else [word]
        for label in (label for name in names for label in _range(name)):
            labels[label] = None
            if len(labels) > MAX_HOSTS:
                raise UsageError(f"more than {MAX_HOSTS} hosts are named")
    if not labels:
        raise UsageError("no host is named", hint="is a script's variable not set?")
    return [_parsed(label) for label in labels]


def _content(name: str, groups: Path) -> str:
    """Return the hosts of a group or file, without comments."""
    path = groups / name if name and (groups / name).is_file() else name
    try:
        return re.sub("#.*", "", read_text(str(path)))
    except (OSError, PycrictlError) as exc:
        reason, hint = reason_of(exc), f"groups are files in {groups}"
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


def _parsed(text: str) -> Host:
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise UsageError(f"{quote(text)} is not a host", hint="write [USER@]HOST[:PORT]")
    label = text.removeprefix("ssh://").rstrip("/")
    return Host(label, match["user"] or "", match["name"].strip("[]"), match["port"] or "")
