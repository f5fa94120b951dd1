"""Recognizes the API server's front proxy by its certificate, and the users it names. Pure.

The API server authenticates and authorizes users; then it forwards their requests with a client
certificate of its own and the user in headers. It publishes the CA and the names of the headers in
the ConfigMap ``kube-system/extension-apiserver-authentication``.
"""

from __future__ import annotations

import re
import ssl
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pycrictl.base.foreign import parse, text
from pycrictl.cluster.agent.api.names import Document

CONFIG_NAMESPACE: Final = "kube-system"
CONFIG_NAME: Final = "extension-apiserver-authentication"

_MAX_CHARS: Final = 1 << 20
"""The size limit of a ConfigMap: nothing of it is cut off."""

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM: Final = re.compile(rf"{_BEGIN}[^-]*-----END CERTIFICATE-----")


class User(NamedTuple):
    """A user as the API server knows it; ``extra`` is for authorizers."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """The CAs of client certificates, as PEM, and the headers of the front proxy.

    ``allowed_names`` are common names of its certificate; empty for any. If a request has several
    headers for the user or the UID, the first in these lists counts.
    """

    proxy_ca: str = ""
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    uid_headers: tuple[str, ...] = ("X-Remote-Uid",)
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)
    client_ca: str = ""

    @property
    def authorities(self) -> str:
        return self.proxy_ca + self.client_ca


def parse_trust(document: Document, client_ca: str = "") -> Trust | None:
    """Return the content of the ConfigMap; ``client_ca`` replaces its ``client-ca-file``."""
    data = document.get("data")
    if not isinstance(data, dict):
        return None
    allowed = _listed(data.get("requestheader-allowed-names", "[]"))
    proxy_ca = certificates(text(data.get("requestheader-client-ca-file"), _MAX_CHARS))
    return Trust(
        # If the names cannot be read, none is allowed, rather than any.
        proxy_ca=proxy_ca if allowed is not None else "",
        allowed_names=allowed or (),
        user_headers=_listed(data.get("requestheader-username-headers")) or (),
        uid_headers=_listed(data.get("requestheader-uid-headers")) or (),
        group_headers=_listed(data.get("requestheader-group-headers")) or (),
        extra_prefixes=_listed(data.get("requestheader-extra-headers-prefix")) or (),
        client_ca=client_ca or certificates(text(data.get("client-ca-file"), _MAX_CHARS)),
    )


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


class ClientCertificate(NamedTuple):
    """A client's certificate, which TLS has verified.

    ``issuer`` is the issuer's certificate, in DER; its own if it is an authority itself.
    """

    names: tuple[str, ...]
    organizations: tuple[str, ...]
    issuer: bytes
    from_s: float
    until_s: float

    @property
    def holder(self) -> User | None:
        return User(self.names[0], self.organizations) if any(self.names[:1]) else None

    def is_signed_by(self, authorities: str) -> bool:
        """Return whether it is valid now, and was issued by one of these CAs.

        TLS has only verified that it was issued by one of all the CAs known here.
        """
        is_valid = self.from_s <= time.time() <= self.until_s
        return is_valid and self.issuer in _in_der(authorities)

    def is_front_proxy(self, trust: Trust) -> bool:
        if not self.is_signed_by(trust.proxy_ca):
            return False
        return not trust.allowed_names or any(one in trust.allowed_names for one in self.names)


def client_certificate(connection: ssl.SSLObject) -> ClientCertificate | None:
    """Return the verified certificate of a connection's client; None if there is none."""
    found: dict[str, Any] | None = connection.getpeercert()
    if not found:
        return None
    subject = [pair for part in found["subject"] for pair in part]
    chain = _verified_chain(connection)
    if not chain:  # a session was resumed
        return None
    return ClientCertificate(
        tuple(value for key, value in subject if key == "commonName"),
        tuple(value for key, value in subject if key == "organizationName"),
        chain[:2][-1],
        ssl.cert_time_to_seconds(found["notBefore"]),
        ssl.cert_time_to_seconds(found["notAfter"]),
    )


def _verified_chain(connection: ssl.SSLObject) -> list[bytes]:
    """Return the certificates that TLS has verified, in DER, the client's own first."""
    if sys.version_info >= (3, 13):
        return connection.get_verified_chain()
    found = connection._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in found or ()]


def certificates(pem: str) -> str:
    """Return only the certificates of a PEM text; empty if one of them cannot be read."""
    try:
        return "".join(map(ssl.DER_cert_to_PEM_cert, sorted(_in_der(pem))))
    except ValueError:
        return ""


@lru_cache(maxsize=8)
def _in_der(pem: str) -> frozenset[bytes]:
    """Return the certificates of a PEM text, in DER; raise ValueError if one is not valid."""
    found = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(pem)]
    if len(found) != pem.count(_BEGIN):
        raise ValueError("a certificate is cut off")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for one in found:
        try:
            context.load_verify_locations(cadata=one)
        except ssl.SSLError as exc:
            raise ValueError("it is not a certificate") from exc
    return frozenset(found)


def _listed(value: object) -> tuple[str, ...] | None:
    """Return the strings of a JSON list in a text; None if it is not such a list."""
    try:
        found = parse(text(value, _MAX_CHARS))
    except ValueError:
        return None
    is_one = isinstance(found, list) and all(isinstance(one, str) for one in found)
    return tuple(found) if is_one else None
