"""The options of a service, each declared once: a field of its settings, made by a ``Row``.

The row defines the flag, the key in the service's TOML file, the help, the man page and the
validation. ``cli.service_command`` makes the flags; the functions here read them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

import tomli

from pycrictl.base.config import socket_path
from pycrictl.base.errors import ConfigError, PycrictlError, UsageError, reason_of
from pycrictl.base.units import parse_duration, parse_size, quote

Read: TypeAlias = Callable[[object], Any]
"""Converts a given value; a ValueError says what is wrong with it."""

MAX_COUNT: Final = 10_000
_LONGEST_S: Final = 86_400.0
_FILE_LIMIT_BYTES: Final = 1024 * 1024
_ROW: Final = "option"


@dataclass(frozen=True)
class Row:
    """An option, or the common properties of all options of a kind."""

    read: Read
    metavar: str = ""
    kind: Any = str
    name: str = ""
    help: str = ""
    is_key: bool = True

    def __call__(
        self, name: str, help: str, default: object = None, *, shown: str = "", is_key: bool = True
    ) -> Any:
        """Return the field of an option; ``shown`` is the default as the help shows it."""
        if not shown and default and default is not True:
            shown = str(default)
        sentence = f"{help} (default: {shown})." if shown else f"{help}."
        value = None if default is None else self.read(default)
        row = replace(self, name=name, help=sentence, is_key=is_key)
        return field(default=value, metadata={_ROW: row})


def options(settings: type[Any]) -> Iterator[tuple[str, Row]]:
    for one in fields(settings):
        if (option := one.metadata.get(_ROW)) is not None:
            yield one.name, option


class Given(NamedTuple):
    path: str
    values: Mapping[str, Any]


def read_flags(settings: type[Any], flags: Mapping[str, object]) -> Given:
    """Check flags by name; None means that a flag is not given."""
    found = {}
    for name, option in options(settings):
        if (value := flags.get(option.name)) is not None:
            try:
                found[name] = option.read(value)
            except ValueError as exc:
                raise UsageError(f"--{option.name}: {exc}") from None
    return Given("", found)


def read_file(settings: type[Any], path: str, *, is_required: bool) -> Given:
    rows = {one.name: (name, one.read) for name, one in options(settings) if one.is_key}
    found = {}
    for key, value in _parsed(path, is_required=is_required).items():
        where = quote(path, 4096)
        if key not in rows:
            hint = f"known keys: {', '.join(rows)}"
            raise ConfigError(f"{where}: unknown key {quote(key)}", hint=hint)
        name, read = rows[key]
        try:
            found[name] = read(value)
        except ValueError as exc:
            raise ConfigError(f"{where}: {key}: {exc}") from None
    return Given(path, found)


def _parsed(path: str, *, is_required: bool) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return tomli.loads(file.read(_FILE_LIMIT_BYTES).decode())
    except FileNotFoundError:
        if not is_required:
            return {}
        raise ConfigError(f"config file {quote(path, 4096)} does not exist") from None
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read the config file {quote(path, 4096)}: {reason}") from None
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{quote(path, 4096)} is not valid TOML: {exc}") from None


# Readers of values


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it is not a string")
    return value


def read_socket(value: object) -> str:
    try:
        path = socket_path(read_text(value), "endpoint")
    except PycrictlError as exc:
        raise ValueError(exc.message) from None
    return str(Path(path).absolute())


def read_number(value: object, most: int | None = None) -> int:
    if type(value) is not int or value < 0 or (most is not None and value > most):
        raise ValueError(f"it is not a number from 0{f' to {most}' if most else ''}")
    return value


def read_size(value: object) -> int:
    if type(value) is int and value >= 0:
        return value
    return parse_size(read_text(value))


def read_folder(value: object) -> str:
    path = read_text(value)
    if not Path(path).is_absolute():
        raise ValueError("it is not an absolute path")
    return path


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("it is not HOST:PORT, such as 127.0.0.1:4317")
    return host, int(port)


def read_host_and_port(value: object) -> str:
    text = read_text(value)
    _host_and_port(text)
    return text


def read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is not true or false")
    return value


def read_duration(value: object) -> float:
    seconds = parse_duration(read_text(value))
    if not 0 <= seconds <= _LONGEST_S:
        raise ValueError("it is not a duration from 0s to 24h")
    return seconds


def read_interval(value: object) -> float:
    seconds = read_duration(value)
    if not seconds:
        raise ValueError("it must be longer than 0s")
    return seconds


def _one_of(kind: type[StrEnum], value: object) -> StrEnum:
    try:
        return kind(cast("str", value))
    except ValueError:
        *others, last = (str(one) for one in kind)
        raise ValueError(f"it is not {', '.join(others)} or {last}") from None


def maybe(read: Read, *, empty: Any = "") -> Read:
    """Return a reader that also accepts an empty string, which means ``empty``."""
    return lambda value: empty if value == "" else read(value)


class Address(NamedTuple):
    host: str
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(value: object) -> Address:
    """Parse ``IP:PORT``, with ``[…]`` around an IPv6 address."""
    given = read_text(value)
    try:
        host, port = _host_and_port(given)
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(f"{quote(given)} is not IP:PORT, such as 127.0.0.1:0") from None
    return Address(str(found), port)


def read_address_of_urls(value: object) -> Address:
    found = read_address(value)
    if ipaddress.ip_address(found.host).is_unspecified:
        raise ValueError(f"{quote(read_text(value))} stands for all addresses, but a URL needs one")
    return found


# Rows, by the type of an option


def choice(kind: type[StrEnum]) -> Row:
    return Row(partial(_one_of, kind), kind=kind)


socket: Final = Row(read_socket, "SOCKET")
count: Final = Row(partial(read_number, most=MAX_COUNT), "N", int)
number: Final = Row(read_number, "N", int)
size: Final = Row(read_size, "SIZE")
folder: Final = Row(read_folder, "DIR")
file: Final = Row(maybe(read_text), "FILE")
word: Final = Row(maybe(read_text), "NAME")
switch: Final = Row(read_switch, kind=bool)
duration: Final = Row(read_duration, "DURATION")
interval: Final = Row(read_interval, "DURATION")
address: Final = Row(read_address, "IP:PORT")
