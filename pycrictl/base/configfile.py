"""``crictl.yaml`` as the ``config`` command shows and changes it.

In a file of ``key: value`` lines, only the values of the keys being set change, and comments are
kept. A file in any other form of YAML or JSON is rewritten as such lines, without its comments.
With ``is_whole``, every key is written and no blank lines, as by crictl. But crictl 1.36.0 lacks
``max-retries`` and rejects a file that has it, so that key is written and listed only if it is
present or being set.
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
from pycrictl.base.units import quote

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


def values(path: str, *, is_whole: bool = False) -> dict[str, str]:
    """Return every key with its value in the file, as text; missing keys have crictl's values.

    ``is_whole`` omits ``max-retries``, which crictl 1.36 lacks, unless the file sets it.
    """
    settings = _parse(path, _read(path) or "")
    return {
        key: _shown(settings.get(key, KEYS[key].absent))
        for key in KEYS
        if key in settings or not (is_whole and key == _NEWER)
    }


def create(path: str) -> bool:
    """Write a file with all of crictl's keys at zero values; return False if the file exists."""
    if _read(path) is not None:
        return False
    change(path, {}, is_whole=True)
    return True


def check_key(key: str) -> None:
    if key not in KEYS:
        raise UsageError(
            f"no configuration key is named {quote(key)}", hint=f"keys are {', '.join(KEYS)}"
        )


def change(path: str, settings: Mapping[str, str], *, is_whole: bool = False) -> None:
    """Set keys in the file, which is created if it does not exist; write all of them or none.

    Args:
        is_whole: whether to write as crictl does: also the keys that the file lacks, with zero
            values, and endpoints that are not unix sockets.
    """
    checked = {key: _checked(key, text, any_endpoint=is_whole) for key, text in settings.items()}
    before = _read(path)
    _parse(path, before or "")
    try:
        _write(path, changed(before or "", checked, is_whole=is_whole), is_new=before is None)
    except OSError as error:
        reason = reason_of(error)
        raise ConfigError(f"cannot write {_file(path)}: {reason}") from None


def changed(text: str, settings: Mapping[str, Any], *, is_whole: bool = False) -> str:
    """Return the text of a valid file with keys set; ``is_whole`` as for ``change``."""
    present = config.parse_file(text)
    if is_whole:
        zeros = {key: KEYS[key].absent for key in KEYS if key != _NEWER}
        settings = {**zeros, **present, **settings}
    after = f"{text.rstrip()}\n".lstrip("\n")
    for key, value in settings.items():
        line = re.compile(rf"(?m)^{key}:[ \t]*(['\"]?)[^#\n]*?([ \t]+#.*|)$")
        after, count = line.subn(partial(_line, key, value), after)
        after += "" if count else f"{_line(key, value)}\n"
    wanted = {**present, **settings}
    try:
        is_right = config.parse_file(after) == wanted
    except ConfigError:
        is_right = False
    if not is_right:  # not a file of plain lines
        return "".join(f"{_line(*pair)}\n" for pair in wanted.items())
    return re.sub(r"(?m)^[ \t]*\n", "", after) if is_whole else after


def _line(key: str, value: str | int | bool, old: re.Match[str] | None = None) -> str:
    is_quoted = old is not None and old[1]
    text = _shown(value)
    if isinstance(value, str) and (is_quoted or not _PLAIN.fullmatch(value)):
        text = json.dumps(value, ensure_ascii=False)
    return f"{key}: {text}{old[2] if old is not None else ''}"


def _shown(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(key: str, text: str, *, any_endpoint: bool) -> str | int | bool:
    check_key(key)
    try:
        parsed = config.parse_file(f"{key}: {json.dumps(text, ensure_ascii=False)}\n")
    except ConfigError as error:
        raise UsageError(error.message.removeprefix("line 1: ")) from None
    value: str | int | bool = parsed[key]
    if isinstance(value, str) and value and not any_endpoint:
        config.socket_path(value, key)
    return value


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
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigError(f"cannot read {_file(path)}: {reason or error}") from None


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
    return f"config file {quote(path, 4096)}"
