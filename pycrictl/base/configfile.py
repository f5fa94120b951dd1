"""``crictl.yaml`` as the ``config`` command shows and changes it.

As with crictl, every key is written, without blank lines. In a file of ``key: value`` lines,
comments are kept; a file in any other form of YAML or JSON is rewritten as such lines, without its
comments. crictl 1.36.0 lacks ``max-retries`` and rejects a file that has it, so that key is written
and listed only if it is present or being set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pycrictl.base import config, noderoot
from pycrictl.base.config import KEYS
from pycrictl.base.errors import ConfigError, UsageError, reason_of
from pycrictl.base.replacing import replacing
from pycrictl.base.units import quote, quote_path

NEW_FILE_MODE: Final = 0o600
NEW_FOLDER_MODE: Final = 0o755

_NEWER: Final = "max-retries"
"""The key that crictl 1.36.0 does not have yet."""
_PLAIN: Final = re.compile(r"(?:unix://)?/[A-Za-z0-9/._+@-]*")
"""Values that need no quotes for any YAML reader."""


def path_of(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the path of the file to show or change, never the one beside the program."""
    path = environ.get("CRI_CONFIG_FILE", config.DEFAULT_PATH) if flag is None else flag
    if not path:
        raise UsageError("the path of the config file is empty")
    return noderoot.given(path)


def values(path: str) -> dict[str, str]:
    """Return every key with its value as text; a missing key has a zero value, as in crictl.

    ``max-retries``, which crictl 1.36 lacks, is omitted unless the file sets it.
    """
    settings = _parse(path, _read(path) or "")
    return {
        key: _shown(settings.get(key, KEYS[key].absent))
        for key in KEYS
        if key in settings or key != _NEWER
    }


def value(path: str, key: str) -> str:
    """Return the value of any key in the file, as text, as in ``values``."""
    check_key(key)
    return values(path).get(key) or _shown(KEYS[key].absent)


def create(path: str) -> bool:
    """Write a file with all of crictl's keys at zero values; return False if the file exists."""
    if _read(path) is not None:
        return False
    change(path, {})
    return True


def check_key(key: str) -> None:
    if key not in KEYS:
        raise UsageError(
            f"no configuration key is named {quote(key)}", hint=f"keys are {', '.join(KEYS)}"
        )


def change(path: str, settings: Mapping[str, str]) -> None:
    """Set keys in the file, which is created if it does not exist; write all of them or none."""
    checked = {key: _checked(key, text) for key, text in settings.items()}
    before = _read(path)
    _parse(path, before or "")
    try:
        _write(path, changed(before or "", checked), is_new=before is None)
    except OSError as error:
        reason = reason_of(error)
        raise ConfigError(f"cannot write {_file(path)}: {reason}") from None


def changed(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text of a valid file with keys set."""
    zeros = {key: KEYS[key].absent for key in KEYS if key != _NEWER}
    wanted = {**zeros, **config.parse_file(text), **settings}
    after = f"{text.rstrip()}\n"
    for key, value in wanted.items():
        line = re.compile(rf"(?m)^{key}:[ \t]*[^#\n]*?([ \t]+#.*|)$")
        after, count = line.subn(partial(_line, key, value), after)
        after += "" if count else f"{_line(key, value)}\n"
    try:
        is_right = config.parse_file(after) == wanted
    except ConfigError:
        is_right = False
    if not is_right:  # not a file of plain lines
        return "".join(f"{_line(*pair)}\n" for pair in wanted.items())
    return re.sub(r"(?m)^[ \t]*\n", "", after)


def _line(key: str, value: str | int | bool, old: re.Match[str] | None = None) -> str:
    text = _shown(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        text = json.dumps(value, ensure_ascii=False)
    return f"{key}: {text}{old[1] if old is not None else ''}"


def _shown(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(key: str, text: str) -> Any:
    check_key(key)
    try:
        return KEYS[key].read(text)
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None


def _parse(path: str, text: str) -> dict[str, Any]:
    try:
        return config.parse_file(text)
    except ConfigError as error:
        raise ConfigError(f"{_file(path)}: {error.message}", hint=error.hint) from None


def _read(path: str) -> str | None:
    try:
        return config.read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ConfigError as error:
        raise ConfigError(f"{_file(path)}: {error.message}", hint=error.hint) from None
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise ConfigError(f"cannot read {_file(path)}: {reason_of(error)}") from None


def _write(path: str, text: str, *, is_new: bool) -> None:
    """Replace the file atomically; keep its mode and owner, and links that point to it."""
    target = Path(path).resolve()
    if is_new:
        target.parent.mkdir(mode=NEW_FOLDER_MODE, parents=True, exist_ok=True)
    elif not target.is_file():
        raise OSError(0, "it is not a regular file")
    with replacing(path, mode=NEW_FILE_MODE) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _file(path: str) -> str:
    return f"config file {quote_path(path)}"
