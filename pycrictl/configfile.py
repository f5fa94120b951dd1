"""``crictl.yaml`` as the ``config`` command shows and changes it.

A change touches only the values that it sets: comments, order, blank lines and the quoting of
other values stay as they are, and no defaults are added. crictl's own way (``is_whole``) is to
write every key, and no blank lines; but crictl 1.36.0 knows no ``max-retries``, and rejects a file
that has it, so it is written and listed only where it stands or is set.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl import config, noderoot, yamltree
from pycrictl.config import KEYS, FileValues, Setting
from pycrictl.errors import ConfigError, UsageError
from pycrictl.units import quote

NEW_FILE_MODE: Final = 0o600
NEW_FOLDER_MODE: Final = 0o755

_PATH_LIMIT_CHARS: Final = 4096
_FIELDS: Final = {key: key.replace("-", "_") for key in KEYS} | {"timeout": "timeout_s"}
# What a missing key stands for.
_ABSENT: Final[Mapping[str, Any]] = {
    "runtime_endpoint": "",
    "image_endpoint": "",
    "timeout_s": 0,
    "debug": False,
    "pull_image_on_create": False,
    "disable_pull_on_run": False,
    "max_retries": config.DEFAULT_MAX_RETRIES,
}
_NEWER: Final = "max-retries"
"""The key that crictl 1.36.0 does not know yet."""
_PLAIN: Final = re.compile(r"(?:unix://)?/[A-Za-z0-9/._+@-]*")
"""Texts that need no quotes for any reader of YAML."""
_SPACED: Final = re.compile(r"^([a-z-]+):[ \t]+", re.MULTILINE)
_BLANK: Final = re.compile(r"^[ \t]*\n", re.MULTILINE)


def path_of(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the file to show or change; unlike for other commands, never one beside the program.

    Raises:
        UsageError: the path is empty.
    """
    path = environ.get("CRI_CONFIG_FILE", config.DEFAULT_PATH) if flag is None else flag
    if not path:
        raise UsageError("the path of the config file is empty")
    return noderoot.given(path)


def values(path: str, *, is_whole: bool = False) -> dict[str, str]:
    """Return every key with what the file says, as text; a file that does not exist says nothing.

    Args:
        is_whole: whether to leave out what crictl does not know, if the file lacks it.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    found = _parse(path, _read(path) or "")
    shown = {}
    for key in KEYS:
        value = getattr(found, _FIELDS[key])
        if value is not None or not (is_whole and key == _NEWER):
            shown[key] = _shown(_ABSENT[_FIELDS[key]] if value is None else value)
    return shown


def create(path: str) -> bool:
    """Write every key of crictl as zero into a file that does not exist; return whether it did not.

    Raises:
        ConfigError: it cannot be read or written.
    """
    if _read(path) is not None:
        return False
    change(path, {}, is_whole=True)
    return True


def check_key(key: str) -> None:
    """Refuse what is not a key.

    Raises:
        UsageError: lists the keys.
    """
    if key not in KEYS:
        raise UsageError(
            f"no configuration key is named {quote(key)}", hint=f"keys are {', '.join(KEYS)}"
        )


def change(path: str, settings: Mapping[str, str], *, is_whole: bool = False) -> None:
    """Set keys in the file, which is created if it does not exist; write all of them or none.

    Args:
        is_whole: whether to write as crictl does: also the keys that the file lacks, as zero,
            repeated keys each time, and endpoints that are not unix sockets.

    Raises:
        UsageError: an unknown key or an invalid value; nothing was written.
        ConfigError: the file cannot be read or written, or is invalid.
    """
    checked: dict[str, Any] = {
        key: _checked(key, text, any_endpoint=is_whole) for key, text in settings.items()
    }
    before = _read(path)
    old = _parse(path, before or "")
    if is_whole:
        lacking = [key for key in KEYS if getattr(old, _FIELDS[key]) is None and key != _NEWER]
        checked = {key: _ABSENT[_FIELDS[key]] for key in lacking} | checked
        checked = {key: checked[key] for key in KEYS if key in checked}
        after = whole(before or "", checked)
    else:
        after = with_values(before or "", checked)
    wanted = old._replace(**{_FIELDS[key]: value for key, value in checked.items()})
    if not _says(after, wanted):
        raise ConfigError(
            f"config file {quote(path, _PATH_LIMIT_CHARS)} has a form that cannot be edited",
            hint="write it as plain lines of 'key: value'",
        )
    try:
        _write(path, after, is_new=before is None)
    except OSError as error:
        raise _unwritable(path, error) from None


def with_values(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text of a valid file with keys set."""
    layout = _layout(text)
    edits: list[_Edit] = []
    added: dict[str, str] = {}
    for key, value in settings.items():
        if span := layout.values.get(key):
            space = "" if text[span.start - 1 : span.start].isspace() else " "
            edits.append(_Edit(span, space + _scalar(value)))
        else:
            added[key] = _scalar(value)
    if added:
        edits.append(_addition(text, layout, added))
    for edit in sorted(edits, key=lambda edit: edit.span.start, reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.stop :]
    return text


def whole(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text of a valid file with keys set each time that they stand there."""
    members = yamltree.parse(text, exact=True).members
    for member in reversed(members):
        if member.key not in settings:
            continue
        span, value = member.node.span, settings[member.key]
        is_quoted = text[span.start : span.start + 1] in ("'", '"')
        space = "" if text[span.start - 1 : span.start].isspace() else " "
        written = json.dumps(value) if is_quoted and isinstance(value, str) else _scalar(value)
        text = text[: span.start] + space + written + text[span.stop :]
    there = {member.key for member in members}
    text = with_values(text, {key: value for key, value in settings.items() if key not in there})
    return _BLANK.sub("", _SPACED.sub(r"\1: ", text))


class _Edit(NamedTuple):
    """A piece of the text and what it becomes."""

    span: slice
    text: str


class _Layout(NamedTuple):
    """Where things stand in a text.

    Attributes:
        values: the span of each key's value; the last one of a key that is repeated.
        end: where a further key may be added.
        indent: spaces before the keys.
        is_flow: whether the mapping is written with braces.
    """

    values: dict[str, slice]
    end: int
    indent: str = ""
    is_flow: bool = False


def _layout(text: str) -> _Layout:
    root = yamltree.parse(text, exact=True)
    start, end = root.span.start, root.span.stop
    is_flow = text[start : start + 1] == "{"
    return _Layout(
        values={member.key: member.node.span for member in root.members},
        end=end - 1 if is_flow else end if root.members else len(text),
        indent=" " * (start - text.rfind("\n", 0, start) - 1) if root.members else "",
        is_flow=is_flow,
    )


def _addition(text: str, layout: _Layout, added: Mapping[str, str]) -> _Edit:
    at = slice(layout.end, layout.end)
    if layout.is_flow:
        pairs = ", ".join(f"{json.dumps(key)}: {value}" for key, value in added.items())
        before = text[: layout.end].rstrip()
        return _Edit(slice(len(before), layout.end), f"{', ' if layout.values else ''}{pairs}")
    lines = "".join(f"{layout.indent}{key}: {value}\n" for key, value in added.items())
    is_open_line = layout.end > 0 and text[layout.end - 1] != "\n"
    return _Edit(at, ("\n" if is_open_line else "") + lines)


def _scalar(value: str | int | bool) -> str:
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return json.dumps(value, ensure_ascii=False)
    return _shown(value)


def _shown(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(key: str, text: str, *, any_endpoint: bool) -> str | int | bool:
    check_key(key)
    try:
        parsed = config.parse_file(f"{key}: {json.dumps(text, ensure_ascii=False)}\n")
    except ConfigError as error:
        raise UsageError(error.message.removeprefix("line 1: ")) from None
    value: str | int | bool | None = getattr(parsed, _FIELDS[key])
    assert value is not None, "a text in quotes is a value"
    if isinstance(value, str) and value and not any_endpoint:
        config.socket_path(Setting(value, "flag"), key)
    return value


def _parse(path: str, text: str) -> FileValues:
    try:
        return config.parse_file(text)
    except ConfigError as error:
        file = f"config file {quote(path, _PATH_LIMIT_CHARS)}"
        raise ConfigError(f"{file}: {error.message}", hint=error.hint) from None


def _says(text: str, wanted: FileValues) -> bool:
    try:
        return config.parse_file(text) == wanted
    except ConfigError:
        return False


def _read(path: str) -> str | None:
    """Return the file's content, None if there is no such file."""
    try:
        return config.read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a path may hold a NUL
        reason = error.strerror if isinstance(error, OSError) else None
        file = f"config file {quote(path, _PATH_LIMIT_CHARS)}"
        raise ConfigError(f"cannot read {file}: {reason or error}") from None


def _write(path: str, text: str, *, is_new: bool) -> None:
    """Replace the file in one step; keep its mode and owner, and links that point to it."""
    target = Path(path).resolve()
    if is_new:
        target.parent.mkdir(mode=NEW_FOLDER_MODE, parents=True, exist_ok=True)
    elif not target.is_file():
        raise OSError(0, "it is not a regular file")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123 (a descriptor)
            stream.write(text)
            stream.flush()
            if is_new:
                os.fchmod(descriptor, NEW_FILE_MODE)
            else:
                status = target.stat()
                with suppress(PermissionError):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, status.st_mode & 0o7777)
            os.fsync(descriptor)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _unwritable(path: str, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"cannot write config file {quote(path, _PATH_LIMIT_CHARS)}: {reason}")
