"""The agent's serving certificate: of files that may be renewed, else made at each start.

One that is made is signed by the agents' own CA (``authority.py``), else by itself. The API server
verifies neither (``insecureSkipTLSVerify``), as for metrics-server.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pycrictl.agent.trust.frontproxy import Trust, certificates
from pycrictl.errors import ConfigError, UsageError
from pycrictl.units import quote

MAX_FILE_BYTES: Final = 1024 * 1024
VALID: Final = timedelta(days=3650)

_NAME: Final = "pycrictl agents"


class Pair(NamedTuple):
    """A certificate and its key, both as PEM."""

    certificate: bytes
    key: bytes


def authority() -> Pair:
    return _made([_NAME], None, is_authority=True)


def serving(names: Sequence[str], authority: Pair | None = None) -> Pair:
    """Return a certificate for these names and addresses; self-signed without an authority.

    Raises:
        ValueError: the authority cannot be read.
    """
    return _made(names, authority, is_authority=False)


def _made(names: Sequence[str], authority: Pair | None, *, is_authority: bool) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
    signer, issuer = key, subject
    if authority is not None:
        own = x509.load_pem_x509_certificate(authority.certificate)
        loaded = serialization.load_pem_private_key(authority.key, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is of another kind")
        if loaded.public_key() != own.public_key():
            raise ValueError("the authority's key is of another certificate")
        signer, issuer = loaded, own.subject
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), True)
        # RFC 5280, 4.2.1: who verifies strictly, as Python does from 3.13 on, wants these.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                encipher_only=False,
                decipher_only=False,
            ),
            True,
        )
    )
    if not is_authority:
        server = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general(name) for name in names]), False
        ).add_extension(x509.ExtendedKeyUsage([server]), False)
    certificate = builder.sign(signer, hashes.SHA256())
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def expiry_s(pair: Pair) -> float:
    """Return until when a certificate is valid, as wall time."""
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc.timestamp()


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Have a context serve with a certificate; its key never touches a disk."""
    with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
        # Without a password function, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")


def read(certificate_file: str, key_file: str) -> Pair:
    """Return the pair that the options ``--tls-cert`` and ``--tls-key`` name."""
    pair = Pair(content(certificate_file, "tls-cert"), content(key_file, "tls-key"))
    try:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        names = f"--tls-cert {quote(certificate_file, 4096)}", f"--tls-key {quote(key_file, 4096)}"
        reason = str(getattr(exc, "reason", None) or exc).lower().replace("_", " ")
        fault = _fault(pair, *names) or f"cannot serve with {' and '.join(names)}: {reason}"
        raise ConfigError(fault) from None
    return pair


def content(path: str, option: str) -> bytes:
    """Return the content of a file that an option names, at most ``MAX_FILE_BYTES`` of it."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read --{option} {quote(path, 4096)}: {reason}") from None


class Certificates:
    """The serving certificate: of files that may be renewed, else self-signed for ``names``."""

    def __init__(self, certificate_file: str, key_file: str, names: list[str]) -> None:
        if bool(certificate_file) != bool(key_file):
            raise UsageError("--tls-cert and --tls-key go together")
        self._files = certificate_file, key_file
        self._names = names
        self._stamp = self._stamped()
        self._pair = read(*self._files) if certificate_file else serving(names)

    @property
    def expiry_s(self) -> float:
        """Until when the certificate is valid, as wall time."""
        return expiry_s(self._pair)

    def sign(self, authority: Pair) -> None:
        self._pair = serving(self._names, authority)

    def renew(self) -> bool:
        """Read the files again if they have changed; return whether they have.

        Raises:
            ConfigError: they cannot be used; what was read before stays in use.
        """
        before, self._stamp = self._stamp, self._stamped()
        if self._stamp == before:
            return False
        self._pair = read(*self._files)
        return True

    def _stamped(self) -> tuple[int, ...]:
        try:
            found = [Path(one).stat() for one in self._files if one]
        except OSError:
            return ()
        # The clock of a file system has steps of milliseconds, in which a file may still grow.
        return tuple(n for one in found for n in (one.st_ino, one.st_size, one.st_mtime_ns))

    def context(self, trust: Trust | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # A session that is resumed would bring back a certificate that was verified earlier.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        load(context, self._pair)
        if trust is not None and trust.authorities:
            context.load_verify_locations(cadata=trust.authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def authorities(path: str, option: str) -> str:
    """Return the certificates of a file that an option names, in PEM."""
    found = certificates(content(path, option).decode("utf-8", "replace"))
    if not found:
        raise ConfigError(f"--{option} {quote(path, 4096)} is not a file of PEM certificates")
    return found


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    with os.fdopen(os.memfd_create("serving"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _fault(pair: Pair, certificate_name: str, key_name: str) -> str:
    """Return what is wrong with a pair; empty if that is not known."""
    try:
        own = x509.load_pem_x509_certificates(pair.certificate)[0].public_key()
    except ValueError:
        return f"{certificate_name} is not a file of PEM certificates"
    except UnsupportedAlgorithm:
        return ""
    try:
        key = load_pem_private_key(pair.key, None)
    except TypeError:
        return f"{key_name} is encrypted"
    except ValueError:
        return f"{key_name} is not a PEM private key"
    except UnsupportedAlgorithm:
        return ""
    return f"{key_name} is not the key of {certificate_name}" if key.public_key() != own else ""


def _general(name: str):  # type: ignore[no-untyped-def]  # the library is imported inside
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
