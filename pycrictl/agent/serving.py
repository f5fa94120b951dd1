"""What an agent serves with: a certificate that may change meanwhile, and which CAs it asks for."""

from __future__ import annotations

import ssl
from pathlib import Path

from pycrictl.agent import certificate
from pycrictl.agent.frontproxy import Trust, certificates
from pycrictl.errors import ConfigError, UsageError
from pycrictl.units import quote


class Certificates:
    """The serving certificate: of files that may be renewed, else self-signed for ``names``."""

    def __init__(self, certificate_file: str, key_file: str, names: list[str]) -> None:
        if bool(certificate_file) != bool(key_file):
            raise UsageError("--tls-cert and --tls-key go together")
        self._files = certificate_file, key_file
        self._names = names
        self._stamp = self._stamped()
        self._pair = (
            certificate.read(*self._files) if certificate_file else certificate.serving(names)
        )

    @property
    def expiry_s(self) -> float:
        """Until when the certificate is valid, as wall time."""
        return certificate.expiry_s(self._pair)

    def sign(self, authority: certificate.Pair) -> None:
        self._pair = certificate.serving(self._names, authority)

    def renew(self) -> bool:
        """Read the files again if they have changed; return whether they have.

        Raises:
            ConfigError: they cannot be used; what was read before stays in use.
        """
        before, self._stamp = self._stamp, self._stamped()
        if self._stamp == before:
            return False
        self._pair = certificate.read(*self._files)
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
        certificate.load(context, self._pair)
        if trust is not None and trust.authorities:
            context.load_verify_locations(cadata=trust.authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def authorities(path: str, option: str) -> str:
    """Return the certificates of a file that an option names, in PEM."""
    found = certificates(certificate.content(path, option).decode("utf-8", "replace"))
    if not found:
        raise ConfigError(f"--{option} {quote(path, 4096)} is not a file of PEM certificates")
    return found
