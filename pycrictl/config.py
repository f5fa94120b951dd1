"""``crictl.yaml``, environment and flags become one frozen ``Config``.

Each setting takes the first of: its flag, its environment variable (the endpoints and the file's
path have one), the file, the built-in default; every value remembers which. An environment variable
counts as given even when it is empty, as for crictl.

Two differences from crictl: a file without ``max-retries`` keeps the default, and an invalid file
at the default path is reported instead of being silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from pycrictl import noderoot
from pycrictl.errors import ConfigError, UsageError
from pycrictl.units import parse_bool, quote

if TYPE_CHECKING:
    from pycrictl.yamltree import Member

T = TypeVar("T")
Origin = Literal["flag", "environment", "file", "default"]

DEFAULT_PATH: Final = "/etc/crictl.yaml"
DEFAULT_TIMEOUT_S: Final = 2.0
DEFAULT_MAX_RETRIES: Final = 3
FILE_LIMIT_BYTES: Final = 1024 * 1024

# File names are shown whole; this is the longest that Linux allows.
_PATH_LIMIT_CHARS: Final = 4096

_NAME_BESIDE_EXECUTABLE: Final = "crictl.yaml"


class Setting(NamedTuple, Generic[T]):
    value: T
    origin: Origin


class Flags(NamedTuple):
    """The global options of the command line; None means not given."""

    config: str | None = None
    runtime_endpoint: str | None = None
    image_endpoint: str | None = None
    timeout_s: float | None = None
    debug: bool | None = None
    max_retries: int | None = None


class Config(NamedTuple):
    """All settings in force.

    ``runtime_endpoint`` is empty with the origin ``default`` if none was given: the client then
    looks for a runtime. ``image_endpoint`` equals it unless it is set on its own; an empty
    one always stands for the runtime's. ``path`` is the file that was read, None
    without one; ``warnings`` are lines for the user.
    """

    runtime_endpoint: Setting[str]
    image_endpoint: Setting[str]
    timeout_s: Setting[float]
    debug: Setting[bool]
    max_retries: Setting[int]
    pull_image_on_create: Setting[bool]
    disable_pull_on_run: Setting[bool]
    path: str | None = None
    warnings: tuple[str, ...] = ()


def load(
    flags: Flags,
    environ: Mapping[str, str],
    *,
    default_path: str = DEFAULT_PATH,
    executable: str | None = None,
) -> Config:
    """Read the configuration file and settle every value.

    Args:
        default_path: the file of the node that is read when none is named; it may be missing.
        executable: the program's own path: ``crictl.yaml`` beside it is read when the file that was
            named, or the one at the default path, does not exist.
    """
    values, path, warnings = _read_first(flags, environ, default_path, executable)
    variable, in_file = environ.get, values.get
    runtime_endpoint = _first(
        "",
        flags.runtime_endpoint,
        variable("CONTAINER_RUNTIME_ENDPOINT"),
        in_file("runtime-endpoint"),
    )
    image_endpoint = _first(
        "", flags.image_endpoint, variable("IMAGE_SERVICE_ENDPOINT"), in_file("image-endpoint")
    )
    timeout_s = _first(DEFAULT_TIMEOUT_S, flags.timeout_s, None, in_file("timeout"))
    return Config(
        runtime_endpoint=runtime_endpoint,
        image_endpoint=image_endpoint if image_endpoint.value else runtime_endpoint,
        timeout_s=timeout_s if timeout_s.value > 0 else Setting(DEFAULT_TIMEOUT_S, "default"),
        debug=_first(False, flags.debug, None, in_file("debug")),
        max_retries=_first(DEFAULT_MAX_RETRIES, flags.max_retries, None, in_file("max-retries")),
        pull_image_on_create=_first(False, None, None, in_file("pull-image-on-create")),
        disable_pull_on_run=_first(False, None, None, in_file("disable-pull-on-run")),
        path=path,
        warnings=warnings,
    )


def socket_path(endpoint: Setting[str], option: str) -> str:
    """Return the path of an endpoint's socket: of ``unix:///path``, or the path itself."""
    text = endpoint.value
    if not text:
        raise UsageError(
            f"--{option} is not set",
            hint=f"the {endpoint.origin} gives an empty text: name a socket or leave it out",
        )
    scheme, colon, rest = text.partition(":")
    is_unix = scheme.lower() == "unix"
    if not colon or not (is_unix or re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme)):
        path = text
    elif not is_unix:
        raise UsageError(
            f"the endpoint {quote(text)} is not supported: {quote(scheme)} is not unix",
            hint="a runtime is reached over a unix socket, such as unix:///run/containerd/containerd.sock",
        )
    else:
        path = rest.removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(
                f"the endpoint {quote(text)} has no absolute path",
                hint="write three slashes, such as unix:///run/containerd/containerd.sock",
            )
    if "\0" in path:
        raise UsageError(f"the endpoint {quote(text)} holds a NUL character")
    return path


def parse_file(text: str) -> dict[str, Any]:
    """Read the content of a configuration file: a flat YAML mapping, JSON included.

    A key given twice has its last value; a key without a value counts as not given. Values are read
    from their text, as crictl does: ``timeout: "5"`` is fine and ``debug: yes`` is not.
    """
    found: dict[str, Any] = {}
    for key, line, node in _members(text):
        if key not in _READERS:
            raise ConfigError(
                f"line {line}: unknown key {quote(key)}", hint=f"known keys: {', '.join(KEYS)}"
            )
        found.pop(key, None)
        if node.type != "null":
            try:
                found[key] = _READERS[key](node.text)
            except ValueError as error:
                raise ConfigError(f"line {node.line}: {key}: {error}") from None
    return found


def _first(default: T, flag: T | None, variable: T | None, in_file: T | None) -> Setting[T]:
    if flag is not None:
        return Setting(flag, "flag")
    if variable is not None:
        return Setting(variable, "environment")
    # `config --set` of crictl writes every other key at its zero value: an empty text is no choice.
    if in_file is not None and in_file != "":
        return Setting(in_file, "file")
    return Setting(default, "default")


def _read_first(
    flags: Flags, environ: Mapping[str, str], default_path: str, executable: str | None
) -> tuple[dict[str, Any], str | None, tuple[str, ...]]:
    named = flags.config if flags.config is not None else environ.get("CRI_CONFIG_FILE")
    if named == "":
        origin = "--config" if flags.config is not None else "CRI_CONFIG_FILE"
        raise ConfigError(f"{origin} is empty", hint="name a file or leave it out")
    candidates = [noderoot.given(default_path if named is None else named)]
    if executable is not None:
        candidates.append(str(Path(executable).with_name(_NAME_BESIDE_EXECUTABLE)))
    for path in candidates:
        file = f"config file {quote(path, _PATH_LIMIT_CHARS)}"
        try:
            values = parse_file(read_text(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            reason, hint = error.strerror or str(error), None
        except ConfigError as error:
            reason, hint = error.message, error.hint
        else:
            if named is None or path == candidates[0]:
                return values, path, ()
            missing = quote(named, _PATH_LIMIT_CHARS)
            return values, path, (f"config file {missing} does not exist, using {file}",)
        if named is not None:
            raise ConfigError(f"{file}: {reason}", hint=hint)
        return {}, None, (f"ignoring the {file}: {reason}",)
    if named is not None:
        raise ConfigError(f"config file {quote(named, _PATH_LIMIT_CHARS)} does not exist")
    return {}, None, ()


def read_text(path: str) -> str:
    # Not Path.read_bytes: it may be a pipe (`--config <(…)`), a device, or a log file by mistake.
    with Path(path).open("rb") as stream:
        content = stream.read(FILE_LIMIT_BYTES + 1)
    if len(content) > FILE_LIMIT_BYTES:
        raise ConfigError(f"it is larger than {FILE_LIMIT_BYTES // 1024} KiB")
    return decoded(content)


def decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"line {line}: it is not UTF-8 text") from None


def _members(text: str) -> list[Member]:
    from pycrictl import yamltree  # noqa: PLC0415 - without a file not needed

    try:
        root = yamltree.parse(text)
        if root.type not in ("mapping", "null"):
            raise yamltree.Problem("it does not hold settings (key: value)", root.line)
        for member in root.members:
            if member.node.type in ("mapping", "list"):
                where = f"the value of {quote(member.key)}"
                raise yamltree.Problem(f"{where} is a list or a mapping", member.line)
    except yamltree.Problem as problem:
        raise ConfigError(f"line {problem.line}: {problem}") from None
    return root.members


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,25}", text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{quote(text)} is not a whole number")
    return int(text)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "runtime-endpoint": str,
    "image-endpoint": str,
    "timeout": _whole_number,
    "debug": parse_bool,
    "pull-image-on-create": parse_bool,
    "disable-pull-on-run": parse_bool,
    "max-retries": _whole_number,
}
KEYS: Final = tuple(_READERS)
"""All keys of a file, in the order in which they are listed."""
