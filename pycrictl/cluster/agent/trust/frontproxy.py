"""Recognizes the API server's front proxy by its certificate, and the users it names. Pure.

The API server authenticates and authorizes users; then it forwards their requests with a client
certificate of its own and the user in headers. It publishes the CA and the names of the headers in
the ConfigMap ``kube-system/extension-apiserver-authentication``.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pycrictl.base.foreign import parse, text
from pycrictl.cluster.agent.api.names import Document

CONFIG_NAMESPACE: Final = "kube-system"
CONFIG_NAME: Final = "extension-apiserver-authentication"

_MAX_CHARS: Final = 1 << 20
"""The size limit of a ConfigMap: nothing of it is cut off."""


class User(NamedTuple):
    """A user as the API server knows it; ``extra`` is for authorizers."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """The CA of the front proxy's certificate, as PEM, and its headers.

    ``allowed_names`` are common names of its certificate; empty for any. If a request has several
    headers for the user or the UID, the first in these lists counts.
    """

    proxy_ca: str = ""
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    uid_headers: tuple[str, ...] = ("X-Remote-Uid",)
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)


class ServerContext(ssl.SSLContext):
    """TLS settings of the agent's port, which verify a client's certificate by ``proxy_ca``."""

    proxy_ca = ""


def parse_trust(document: Document) -> Trust | None:
    """Return the content of the ConfigMap."""
    data = document.get("data")
    if not isinstance(data, dict):
        return None
    allowed = _listed(data.get("requestheader-allowed-names", "[]"))
    proxy_ca = checked(text(data.get("requestheader-client-ca-file"), _MAX_CHARS))
    return Trust(
        # If the names cannot be read, none is allowed, rather than any.
        proxy_ca=proxy_ca if allowed is not None else "",
        allowed_names=allowed or (),
        user_headers=_listed(data.get("requestheader-username-headers")) or (),
        uid_headers=_listed(data.get("requestheader-uid-headers")) or (),
        group_headers=_listed(data.get("requestheader-group-headers")) or (),
        extra_prefixes=_listed(data.get("requestheader-extra-headers-prefix")) or (),
    )


def is_front_proxy(trust: Trust, connection: ssl.SSLObject) -> bool:
    """Return whether the other end of a TLS connection is the front proxy, by its certificate.

    TLS has verified the certificate, but by what was trusted when the connection began, and valid
    as it was then.
    """
    found: dict[str, Any] | None = connection.getpeercert()
    context = connection.context
    if not found or not isinstance(context, ServerContext) or context.proxy_ca != trust.proxy_ca:
        return False
    since_s, until_s = (ssl.cert_time_to_seconds(found[key]) for key in ("notBefore", "notAfter"))
    subject = [pair for part in found["subject"] for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    is_allowed = not trust.allowed_names or any(name in trust.allowed_names for name in names)
    return is_allowed and since_s <= time.time() <= until_s


def user_of(trust: Trust, headers: Mapping[str, str]) -> User | None:
    """Return the user of a request that the front proxy sent; None if it names none.

    Each group has its own header, all with the same name. All of them count, as an omitted group
    might be the one that is denied something.
    """
    name = next((headers[key] for key in trust.user_headers if headers.get(key)), "")
    if not name:
        return None
    uid = next((headers[key] for key in trust.uid_headers if headers.get(key)), "")
    wanted = {key.lower() for key in trust.group_headers}
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for key, value in headers.items():
        lower = key.lower()
        if lower in wanted:
            groups.append(value)
        for prefix in trust.extra_prefixes:
            if lower.startswith(prefix.lower()):
                # The API server escapes characters that header names may not have (headerrequest).
                extra.setdefault(unquote(lower[len(prefix) :]), []).append(value)
    return User(name, tuple(groups), uid, extra_of(extra))


def extra_of(found: Mapping[str, Iterable[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((key, tuple(values)) for key, values in found.items()))


def checked(pem: str) -> str:
    """Return the PEM text of certificates; empty if there are none, or one cannot be read."""
    plain = pem.encode("ascii", "ignore").decode()  # beside certificates, anything may stand
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=plain)
    except (ssl.SSLError, ValueError):
        return ""
    return plain


def _listed(value: object) -> tuple[str, ...] | None:
    """Return the strings of a JSON list in a text; None if it is not such a list."""
    try:
        found = parse(text(value, _MAX_CHARS))
    except ValueError:
        return None
    is_one = isinstance(found, list) and all(isinstance(one, str) for one in found)
    return tuple(found) if is_one else None
