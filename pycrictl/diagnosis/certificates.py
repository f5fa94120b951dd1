"""Until when the certificate is valid that a service of this node serves with."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from pycrictl.tls import client_context

TIMEOUT_S: Final = 1.0


def expiry_s(port: int) -> float | None:
    """Return until when a certificate is valid (wall time); None if nobody serves with TLS there.

    Args:
        port: of the loopback address.
    """
    address = "127.0.0.1", port
    try:
        found = _certificate(address, client_context(verifies=False))
    except OSError:
        return None
    if found is None:
        return None
    # OpenSSL says what is in a certificate only of one that it has verified: here by itself.
    context = client_context(ca_data=ssl.DER_cert_to_PEM_cert(found))
    context.check_hostname = False
    try:
        with socket.create_connection(address, TIMEOUT_S) as sock, context.wrap_socket(sock) as tls:
            said = tls.getpeercert() or {}
    except ssl.SSLCertVerificationError:
        return 0.0  # it has expired
    except OSError:
        return None
    until = said.get("notAfter")
    return float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None


def _certificate(address: tuple[str, int], context: ssl.SSLContext) -> bytes | None:
    with socket.create_connection(address, TIMEOUT_S) as sock, context.wrap_socket(sock) as tls:
        return tls.getpeercert(binary_form=True)
