"""Removal of secrets from messages and texts before they are logged or shown."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pycrictl.base.units import escape, quote

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

    M = TypeVar("M", bound=Message)


MASK: Final = "[redacted]"
LOG_LIMIT_CHARS: Final = 16 * 1024

# kubectl stores the whole manifest here, including the values of environment variables.
_MANIFEST_ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"

_USERINFO: Final = r"(https?://)[^/\s@\"']*@"
_SECRET_PARAMETER: Final = (
    r"(?i)([?&][^=&\s]*(?:signature|sig|token|secret|password|credential)[^=&\s]*=)[^&\s\"']+"
)


def redacted(message: M) -> M:
    """Return a copy of ``message`` without secrets.

    It masks fields marked ``debug_redact`` in the API (credentials of registries), all bytes
    (values of environment variables, output of commands), the ``info`` of verbose answers (which
    quotes the container's environment and the daemon's configuration), kubectl's copy of the
    manifest, and the URLs of streams (they hold the token that opens the stream).
    """
    copy = type(message)()
    copy.CopyFrom(message)
    _mask(copy)
    return copy


def describe(message: Message) -> str:
    """Return ``message`` as one line for the log, without secrets, in protobuf's text form."""
    # Imported only for the log: kubectl's plugins use this module for texts, without protobuf.
    from google.protobuf import text_format  # noqa: PLC0415 - kubectl's plugins have no protobuf

    text = text_format.MessageToString(redacted(message), as_one_line=True)
    text = escape(redact_text(text))
    if len(text) > LOG_LIMIT_CHARS:
        text = f"{text[:LOG_LIMIT_CHARS]}… ({len(text) - LOG_LIMIT_CHARS} more characters)"
    return "{" + text + "}"


def redact_text(text: str) -> str:
    """Return ``text`` without the credentials in its URLs: user info and signed parameters."""
    return re.sub(_SECRET_PARAMETER, rf"\1{MASK}", re.sub(_USERINFO, rf"\1{MASK}@", text))


def quote_reference(reference: str) -> str:
    """Return an image reference in quotes, for a message; a URL may contain a password."""
    return quote(redact_text(reference))


def _mask(message: Any) -> None:
    for field, value in message.ListFields():
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            _mask_map(field.name, entry.fields_by_name["value"], value)
        elif entry is not None:
            for child in value if field.is_repeated else (value,):
                _mask(child)
        elif _is_secret(field):
            mask: str | bytes = MASK.encode() if field.type == field.TYPE_BYTES else MASK
            if field.is_repeated:
                value[:] = [mask] * len(value)
            else:
                setattr(message, field.name, mask)


def _mask_map(name: str, value_field: FieldDescriptor, entries: Any) -> None:
    for key in entries:
        if value_field.message_type is not None:
            _mask(entries[key])
        elif value_field.type == value_field.TYPE_BYTES:
            entries[key] = MASK.encode()
        elif name == "info" or key == _MANIFEST_ANNOTATION:
            entries[key] = MASK


@cache
def _is_secret(field: FieldDescriptor) -> bool:
    if field.type == field.TYPE_BYTES or field.GetOptions().debug_redact:
        return True
    return field.name == "url" and field.type == field.TYPE_STRING


def call_log() -> logging.Logger | None:
    """Return the logger of calls, or None if debug logging is off."""
    log = logging.getLogger("pycrictl.cri")
    return log if log.isEnabledFor(logging.DEBUG) else None
