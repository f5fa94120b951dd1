"""The hosts of ``--host``: names, ranges, files and groups.

``USER@HOST:PORT`` and ``ssh://USER@HOST:PORT`` name one host, ``node[01-20]`` a range. ``@NAME`` is
a group of the user's configuration (``~/.config/pycrictl/hosts.yaml``: a name, then a list or a
text of hosts), or else a file with hosts line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.config import read_text
from pycrictl.errors import ConfigError, PycrictlError, UsageError
from pycrictl.units import quote

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
        user: to log in as; empty for that of ssh's configuration.
        name: an address, or a name of ssh's configuration.
        port: empty for that of ssh's configuration.
    """

    label: str
    user: str
    name: str
    port: str


def parse(text: str) -> Host:
    """Parse a single host; a name that ssh could take for an option is refused."""
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise UsageError(f"{quote(text)} is not a host", hint="write [USER@]HOST[:PORT]")
    label = text.removeprefix("ssh://").rstrip("/")
    return Host(label, match["user"] or "", match["name"].strip("[]"), match["port"] or "")


def hosts_of(words: Iterable[str], environ: Mapping[str, str]) -> list[Host]:
    """Return the hosts that the values of ``--host`` name, each once, in their order."""
    groups = Groups(environ)
    labels = dict.fromkeys(label for word in words for label in _expanded(word, groups, 0))
    if len(labels) > MAX_HOSTS:
        raise UsageError(f"more than {MAX_HOSTS} hosts are named")
    if not labels:
        raise UsageError("no host is named", hint="is a script's variable not set?")
    return [parse(label) for label in labels]


class Groups:
    """The groups of the user's configuration, read on first use."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~") / ".config"
        self.path = Path(home).expanduser() / "pycrictl/hosts.yaml"
        self._hosts: dict[str, list[str]] | None = None

    @property
    def hosts(self) -> dict[str, list[str]]:
        if self._hosts is None:
            try:
                self._hosts = self._read()
            except OSError as exc:
                raise _unreadable(str(self.path), exc) from None
        return self._hosts

    def _read(self) -> dict[str, list[str]]:
        from pycrictl import yamltree  # noqa: PLC0415 - only for a group

        try:
            root = yamltree.parse(read_text(str(self.path)))
            if root.type not in ("mapping", "null"):
                raise yamltree.Problem("it does not hold groups (name: hosts)", root.line)
            return {
                name: [str(one) for one in (node.data if node.type == "list" else [node.text])]
                for name, _, node in root.members
            }
        except FileNotFoundError:
            return {}
        except yamltree.Problem as problem:
            text = f"{quote(str(self.path), 4096)}: line {problem.line}: {problem}"
            raise ConfigError(text, hint=problem.hint) from None


def known_hosts(environ: Mapping[str, str]) -> list[str]:
    """Return the hosts of ``~/.ssh/config``, without patterns."""
    path = Path(environ.get("HOME") or "~").expanduser() / ".ssh/config"
    try:
        lines = [line.split() for line in read_text(str(path)).splitlines()]
    except (OSError, PycrictlError):
        return []
    words = [word for line in lines if line[:1] in (["Host"], ["host"]) for word in line[1:]]
    return [word for word in words if _HOST.fullmatch(word)]


def _expanded(text: str, groups: Groups, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{quote(text)}: groups and files name each other")
    for word in re.split(r"[,\s]+", text.strip()):
        if word.startswith("@"):
            for line in _members(word[1:], groups):
                yield from _expanded(line, groups, depth + 1)
        elif word:
            yield from _range(word)


def _members(name: str, groups: Groups) -> list[str]:
    if "/" not in name and name in groups.hosts:
        return groups.hosts[name]
    try:
        lines = read_text(name).splitlines()
    except FileNotFoundError:
        known = ", ".join(groups.hosts) or "none"
        raise ConfigError(
            f"there is no group or file {quote(name, 4096)}",
            hint=f"groups in {groups.path}: {known}",
        ) from None
    except OSError as exc:
        raise _unreadable(name, exc) from None
    except PycrictlError as exc:
        raise ConfigError(f"{quote(name, 4096)}: {exc.message}") from None
    return [line.partition("#")[0] for line in lines]


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


def _unreadable(path: str, exc: OSError) -> ConfigError:
    reason = (exc.strerror or str(exc)).lower()
    return ConfigError(f"cannot read {quote(path, 4096)}: {reason}")
