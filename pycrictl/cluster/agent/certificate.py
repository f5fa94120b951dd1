"""The certificate with which the agent serves, its key, and the CA of all agents, from files.

They are usually those of a Secret, which the kubelet replaces when they are renewed.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.tls import client_context, load_pair
from pycrictl.base.units import escape, quote
from pycrictl.cluster.agent.access import ServerContext, Trust, checked
from pycrictl.cluster.agent.api.names import SERVICE

MAX_FILE_BYTES: Final = 1024 * 1024


class Certificates:
    """The contents of the files; renewed ones are used only if all of them are valid.

    Attributes:
        ca: PEM of the authorities by which agents verify each other.
        expiry_s: when the certificate expires, as wall time.

    Raises:
        ConfigError: the files cannot be used, also by ``renew``.
    """

    ca = ""
    expiry_s = 0.0

    def __init__(self, certificate_file: str, key_file: str, ca_file: str) -> None:
        self._files = {"tls-cert": certificate_file, "tls-key": key_file, "peer-ca": ca_file}
        self._contents: list[bytes] = []
        self.renew()

    def renew(self) -> bool:
        """Read the files; return whether they have changed since they were read the last time."""
        contents = [_content(path, option) for option, path in self._files.items()]
        if contents == self._contents:
            return False
        self._contents = contents
        certificate, key, ca = contents
        certificate_file, key_file, ca_file = (quote(path, 4096) for path in self._files.values())
        if not (authorities := checked(ca.decode("utf-8", "replace"))):
            raise ConfigError(f"--peer-ca {ca_file} is not a file of PEM certificates")
        try:
            expiry_s = _expiry_s(certificate, key)
        except ssl.SSLCertVerificationError as exc:
            reason = escape(exc.verify_message)
            raise ConfigError(f"--tls-cert {certificate_file} cannot be used: {reason}") from None
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            names = f"--tls-cert {certificate_file} and --tls-key {key_file}"
            what = "are not a PEM certificate and its unencrypted key"
            raise ConfigError(f"{names} {what}") from None
        self._pair, self.ca, self.expiry_s = (certificate, key), authorities, expiry_s
        return True

    def context(self, trust: Trust | None) -> ServerContext:
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # A resumed session would bring back a certificate that was verified earlier.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        load_pair(context, *self._pair)
        if trust is not None and trust.proxy_ca:
            context.proxy_ca = trust.proxy_ca
            context.load_verify_locations(cadata=trust.proxy_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _content(path: str, option: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read --{option} {quote(path, 4096)}: {reason}") from None


def _expiry_s(certificate: bytes, key: bytes) -> float:
    """Return when a certificate expires; raise OSError or ValueError if peers would refuse it.

    The library describes a certificate only to a client that has verified it, so there is a client
    here, which trusts this certificate alone.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(server, certificate, key)
    client = client_context(ca_data=certificate.decode("ascii", "ignore"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=SERVICE)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client_end, server_end, client_end):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    described = client_end.getpeercert()
    assert described is not None
    return ssl.cert_time_to_seconds(str(described["notAfter"]))
