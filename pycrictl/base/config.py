"""``crictl.yaml``, environment and flags become one frozen ``Config``.

Each setting takes the first of: its flag, its environment variable (the endpoints and the file's
path have one), the file, the built-in default. An environment variable counts as given even when it
is empty, as for crictl.

Two differences from crictl: a file without ``max-retries`` keeps the default, and an invalid file
at the default path is reported instead of being silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.base import limits, noderoot
from pycrictl.base.errors import ConfigError, UsageError, reason_of
from pycrictl.base.units import parse_bool, quote, quote_path

T = TypeVar("T")

DEFAULT_PATH: Final = "/etc/crictl.yaml"
DEFAULT_TIMEOUT_S: Final = 2.0
DEFAULT_MAX_RETRIES: Final = 3

_NAME_BESIDE_EXECUTABLE: Final = "crictl.yaml"


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

    ``runtime_endpoint`` is None if none was given: the client then searches for a runtime.
    An ``image_endpoint`` that is not set, or set to an empty text, becomes ``runtime_endpoint``.
    ``path`` is the file that was read, or None; ``warnings`` are lines for the user.
    """

    runtime_endpoint: str | None = None
    image_endpoint: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    debug: bool = False
    max_retries: int = DEFAULT_MAX_RETRIES
    pull_image_on_create: bool = False
    disable_pull_on_run: bool = False
    path: str | None = None
    warnings: tuple[str, ...] = ()


def load(
    flags: Flags,
    environ: Mapping[str, str],
    *,
    default_path: str = DEFAULT_PATH,
    executable: str | None = None,
) -> Config:
    """Read the configuration file and determine every setting.

    Args:
        default_path: the node's file, which is read if no other is named; it may be missing.
        executable: the program's own path; ``crictl.yaml`` in its directory is read if the file
            that was named, or else ``default_path``, does not exist.
    """
    values, path, warnings = _read_first(flags, environ, default_path, executable)
    in_file = values.get
    runtime_endpoint = _first(
        flags.runtime_endpoint,
        environ.get("CONTAINER_RUNTIME_ENDPOINT"),
        # crictl's `config --set` writes all other keys with zero values, which are not choices.
        in_file("runtime-endpoint") or None,
    )
    image_endpoint = _first(
        flags.image_endpoint, environ.get("IMAGE_SERVICE_ENDPOINT"), in_file("image-endpoint")
    )
    timeout_s = _first(flags.timeout_s, in_file("timeout")) or 0.0
    max_retries = _first(flags.max_retries, in_file("max-retries"))
    return Config(
        runtime_endpoint=runtime_endpoint,
        image_endpoint=image_endpoint or runtime_endpoint,
        timeout_s=timeout_s if timeout_s > 0 else DEFAULT_TIMEOUT_S,
        debug=bool(_first(flags.debug, in_file("debug"))),
        max_retries=DEFAULT_MAX_RETRIES if max_retries is None else max_retries,
        pull_image_on_create=bool(in_file("pull-image-on-create")),
        disable_pull_on_run=bool(in_file("disable-pull-on-run")),
        path=path,
        warnings=warnings,
    )


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def socket_path(endpoint: str, option: str) -> str:
    """Return the socket path of an endpoint, which is ``unix:///path`` or the path alone."""
    if not endpoint:
        raise UsageError(f"--{option} is not set", hint="give a socket's path, or omit the option")
    path = endpoint
    scheme, colon, rest = endpoint.partition(":")
    if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        example = "unix:///run/containerd/containerd.sock"
        if scheme.lower() != "unix":
            raise UsageError(
                f"the endpoint {quote(endpoint)} is not supported: {quote(scheme)} is not unix",
                hint=f"a runtime is reached over a unix socket, such as {example}",
            )
        path = rest.removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(
                f"the endpoint {quote(endpoint)} has no absolute path",
                hint=f"write three slashes, such as {example}",
            )
    if "\0" in path:
        raise UsageError(f"the endpoint {quote(endpoint)} holds a NUL character")
    return path


def parse_file(text: str) -> dict[str, Any]:
    """Read the content of a configuration file: a flat YAML mapping, JSON included.

    The last value of a repeated key counts; a key without a value counts as not given. Values are
    parsed from their text, as by crictl: ``timeout: "5"`` is valid and ``debug: yes`` is not.
    """
    from pycrictl.base import yamldata  # noqa: PLC0415 - not needed without a file

    settings: dict[str, Any] = {}
    document = yamldata.parse(text, is_typed=False)
    if not isinstance(document, dict | None):
        raise ConfigError("it does not hold settings (key: value)")
    for key, value in (document or {}).items():
        if key not in KEYS:
            hint = f"known keys: {', '.join(KEYS)}"
            raise ConfigError(f"unknown key {quote(key)}", hint=hint)
        if isinstance(value, dict | list):
            raise ConfigError(f"the value of {quote(key)} is a list or a mapping")
        if value is not None:
            try:
                settings[key] = KEYS[key].read(value)
            except ValueError as error:
                raise ConfigError(f"{key}: {error}") from None
    return settings


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
        file = f"config file {quote_path(path)}"
        try:
            values = parse_file(read_text(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            reason, hint = reason_of(error), None
        except ConfigError as error:
            reason, hint = error.message, error.hint
        else:
            if named is None or path == candidates[0]:
                return values, path, ()
            missing = quote_path(named)
            return values, path, (f"config file {missing} does not exist, using {file}",)
        if named is not None:
            raise ConfigError(f"{file}: {reason}", hint=hint)
        return {}, None, (f"ignoring the {file}: {reason}",)
    if named is not None:
        raise ConfigError(f"config file {quote_path(named)} does not exist")
    return {}, None, ()


def read_text(path: str) -> str:
    # Not Path.read_bytes: it may be a pipe (`--config <(…)`), a device, or a log file by mistake.
    with Path(path).open("rb") as stream:
        content = stream.read(limits.FILE_BYTES + 1)
    if len(content) > limits.FILE_BYTES:
        raise ConfigError(f"it is larger than {limits.FILE_BYTES // 1024} KiB")
    return decoded(content)


def decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"line {line}: it is not UTF-8 text") from None


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,25}", text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{quote(text)} is not a whole number")
    return int(text)


class ConfigKey(NamedTuple):
    read: Callable[[str], Any]
    absent: Any


KEYS: Final[Mapping[str, ConfigKey]] = {
    "runtime-endpoint": ConfigKey(str, ""),
    "image-endpoint": ConfigKey(str, ""),
    "timeout": ConfigKey(_whole_number, 0),
    "debug": ConfigKey(parse_bool, False),
    "pull-image-on-create": ConfigKey(parse_bool, False),
    "disable-pull-on-run": ConfigKey(parse_bool, False),
    "max-retries": ConfigKey(_whole_number, DEFAULT_MAX_RETRIES),
}
"""All keys of a file, in the order in which they are listed."""
