"""Makes certificates, and reads the expiry of those in files.

It runs in a process of its own (``certificate``): its library would take 8 to 13 MiB in a serving
agent, which does not need it.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

VALID: Final = timedelta(days=3650)

_OF_AUTHORITY: Final = ("key_cert_sign", "crl_sign")
_OF_SERVER: Final = ("digital_signature",)
_OTHERS: Final = (
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "encipher_only",
    "decipher_only",
)
"""The uses of a key that ``KeyUsage`` wants to have named, too."""

Made: TypeAlias = tuple[str, str, float]
"""A certificate and its key, both as PEM, and its expiry, as wall time."""


def main() -> None:
    """Read a function's name and arguments as JSON from stdin; write its result to stdout."""
    name, *arguments = json.load(sys.stdin)
    json.dump(issue(*arguments) if name == "issue" else expiry_s(*arguments), sys.stdout)


def issue(names: Sequence[str], authority: Sequence[str] | None, is_authority: bool) -> Made | None:
    """Return a certificate for these names and addresses; None if the authority is not valid.

    ``authority`` is the issuer's certificate and key; None for a self-signed certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
    signer: ec.EllipticCurvePrivateKey = key
    issuer = subject
    if authority is not None:
        try:
            own = x509.load_pem_x509_certificate(authority[0].encode())
            loaded = load_pem_private_key(authority[1].encode(), None)
        except (ValueError, TypeError):
            return None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            return None
        if loaded.public_key() != own.public_key():
            return None
        signer, issuer = loaded, own.subject
    now = datetime.now(UTC)
    all_uses = (*_OF_AUTHORITY, *_OF_SERVER, *_OTHERS)
    uses = dict.fromkeys(_OF_AUTHORITY if is_authority else _OF_SERVER, True)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), True)
        # RFC 5280, 4.2.1: strict verifiers, such as Python from 3.13 on, need these.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
        .add_extension(x509.KeyUsage(**dict.fromkeys(all_uses, False) | uses), True)
    )
    if not is_authority:
        server = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), False
        ).add_extension(x509.ExtendedKeyUsage([server]), False)
    made = builder.sign(signer, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    return pem.decode(), private.decode(), made.not_valid_after_utc.timestamp()


def expiry_s(certificate: str) -> float:
    """Return the expiry of a certificate in PEM, as wall time; the first if there are several."""
    return x509.load_pem_x509_certificates(certificate.encode())[0].not_valid_after_utc.timestamp()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
