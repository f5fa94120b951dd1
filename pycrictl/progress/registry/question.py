"""What a registry is asked about an image that is being pulled, and as whom."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2


class Credentials(NamedTuple):
    """Who asks a registry; never shown."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"


def credentials_of(auth: cri_pb2.AuthConfig) -> Credentials | None:
    """Return the credentials of a PullImage request (CRI ``AuthConfig``); None without any."""
    username, password = auth.username, auth.password
    if auth.auth and not username:
        with suppress(ValueError):
            text = base64.b64decode(auth.auth).decode()
            username, _, password = text.rstrip("\0").partition(":")
    found = Credentials(username, password, auth.identity_token, auth.registry_token)
    return found if any(found) else None


@dataclass(frozen=True, slots=True)
class Question:
    """What a registry is asked, and how the process that pulls reaches it.

    Attributes:
        reference: the image; a tag is missing where it is ``latest``.
        credentials: those of the pull; None for what the node's own files say.
        environ: variables that decide how the registry is reached.
        verifies_tls: whether its certificate has to be good.
    """

    reference: str
    credentials: Credentials | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    verifies_tls: bool = True
