"""The API server's front proxy, which may name users, by its client certificate. Pure.

The API server authenticates and authorizes; then it forwards the request with a certificate of its
own and the user in headers. Which CA and which headers, it writes into the ConfigMap
``kube-system/extension-apiserver-authentication``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import NameOID, load_der_x509_certificate, load_pem_x509_certificates

from pycrictl.agent.api.names import Document
from pycrictl.foreign import parse, text

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

CONFIG_NAMESPACE: Final = "kube-system"
CONFIG_NAME: Final = "extension-apiserver-authentication"

_MAX_CHARS: Final = 1 << 20
"""What a ConfigMap may have: nothing of it is cut."""


class User(NamedTuple):
    """A user as the API server knows it; ``extra`` is for authorizers."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """The CAs of client certificates, as PEM, and the headers of the front proxy.

    Attributes:
        allowed_names: common names of the front proxy's certificate; none for any.
        user_headers, uid_headers: the first that is set counts.
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
        """The PEM of all CAs whose certificates are accepted."""
        return self.proxy_ca + self.client_ca


def parse_trust(document: Document, client_ca: str = "") -> Trust | None:
    """Return the content of the ConfigMap; None if it is not such a map.

    Args:
        client_ca: PEM in place of its ``client-ca-file``.
    """
    data = document.get("data")
    if not isinstance(data, dict):
        return None
    allowed = _listed(data.get("requestheader-allowed-names", "[]"))
    proxy_ca = certificates(text(data.get("requestheader-client-ca-file"), _MAX_CHARS))
    return Trust(
        # If it cannot be read, no name is allowed, rather than any.
        proxy_ca=proxy_ca if allowed is not None else "",
        allowed_names=allowed or (),
        user_headers=_listed(data.get("requestheader-username-headers")) or (),
        uid_headers=_listed(data.get("requestheader-uid-headers")) or (),
        group_headers=_listed(data.get("requestheader-group-headers")) or (),
        extra_prefixes=_listed(data.get("requestheader-extra-headers-prefix")) or (),
        client_ca=client_ca or certificates(text(data.get("client-ca-file"), _MAX_CHARS)),
    )


def user_of(
    trust: Trust, headers: Mapping[str, str], everything: Iterable[tuple[str, str]]
) -> User | None:
    """Return the user of a request that the front proxy sent; None if it names none.

    Args:
        headers: case-insensitive.
        everything: all headers in their order, since groups have one each. All of them count, as
            one that is left out might be the one that denies something.
    """
    name = next((headers[key] for key in trust.user_headers if headers.get(key)), "")
    if not name:
        return None
    uid = next((headers[key] for key in trust.uid_headers if headers.get(key)), "")
    wanted = {key.lower() for key in trust.group_headers}
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for key, value in everything:
        lower = key.lower()
        if lower in wanted:
            groups.append(value)
        for prefix in trust.extra_prefixes:
            if lower.startswith(prefix.lower()):
                # The API server escapes what may not be in a header's name (headerrequest).
                extra.setdefault(unquote(lower[len(prefix) :]), []).append(value)
    return User(name, tuple(groups), uid, extra_of(extra))


def extra_of(found: Mapping[str, Iterable[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return what ``User.extra`` has of such a mapping."""
    return tuple(sorted((key, tuple(values)) for key, values in found.items()))


def certificates(pem: str) -> str:
    """Return the certificates of a PEM text alone; empty if one of them cannot be read."""
    return "".join(one.public_bytes(Encoding.PEM).decode("ascii") for one in _certificates(pem))


def holder(certificate: bytes) -> User | None:
    """Return the user that a certificate in DER stands for: its name, its organizations."""
    parsed = _certificate(certificate)
    names = _attribute(parsed, "COMMON_NAME")
    if not names or not names[0]:
        return None
    return User(names[0], tuple(_attribute(parsed, "ORGANIZATION_NAME")))


def is_signed_by(certificate: bytes, authorities: str, now: datetime | None = None) -> bool:
    """Return whether a certificate in DER was issued by one of some CAs, and is valid now.

    TLS has verified that it leads to one of all the CAs that are known here; this says to which.
    """
    parsed = _certificate(certificate)
    when = now or datetime.now(UTC)
    if not parsed.not_valid_before_utc <= when <= parsed.not_valid_after_utc:
        return False
    return any(_is_issued(parsed, authority) for authority in _certificates(authorities))


def is_front_proxy(certificate: bytes, trust: Trust) -> bool:
    """Return whether a certificate in DER, empty for none, is one of the front proxy."""
    if not certificate or not trust.proxy_ca or not is_signed_by(certificate, trust.proxy_ca):
        return False
    names = _attribute(_certificate(certificate), "COMMON_NAME")
    return not trust.allowed_names or any(name in trust.allowed_names for name in names)


def _is_issued(certificate: Certificate, authority: Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # ValueError, TypeError, InvalidSignature: by key and algorithm
        return False
    return True


def _certificate(der: bytes) -> Certificate:
    return load_der_x509_certificate(der)


def _certificates(pem: str) -> list[Certificate]:
    try:
        return load_pem_x509_certificates(pem.encode()) if pem.strip() else []
    except ValueError:
        return []


def _attribute(certificate: Certificate, name: str) -> list[str]:
    found = certificate.subject.get_attributes_for_oid(getattr(NameOID, name))
    return [str(one.value) for one in found]


def _listed(value: object) -> tuple[str, ...] | None:
    """Return the texts of a list that is written as JSON in a text; None if it is none."""
    try:
        found = parse(text(value, _MAX_CHARS))
    except ValueError:
        return None
    is_one = isinstance(found, list) and all(isinstance(one, str) for one in found)
    return tuple(found) if is_one else None
