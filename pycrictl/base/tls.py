"""TLS to the servers of a cluster, verified as Kubernetes and container runtimes do it."""

from __future__ import annotations

import os
import ssl


def client_context(
    *, verifies: bool = True, ca_file: str | None = None, ca_data: str | None = None
) -> ssl.SSLContext:
    """Return a client's context, with the same settings in every Python version.

    As in Go, any trusted certificate may end a chain, and an authority needs none of the extensions
    that OpenSSL's strict mode requires: that mode is the default since Python 3.13, and would
    refuse clusters that their own kubelets accept.

    Args:
        ca_file, ca_data: the only authorities to trust, in PEM; if neither is given, the system's.

    Raises:
        OSError, ValueError: the authorities cannot be used; ``ssl.SSLError`` is an OSError.
    """
    if verifies:
        context = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
        context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key, both in PEM, into a context, without writing them to disk.

    Raises:
        OSError: they cannot be used.
    """
    # The library reads them from a file only, so they are put into one in memory.
    with os.fdopen(os.memfd_create("pair"), "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        # Without a password function, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: "")


def os_error_of(exc: Exception) -> OSError:
    """Return the system's or TLS's error that caused an error of urllib3."""
    import urllib3  # noqa: PLC0415 - it has been imported

    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, OSError):
        is_other = isinstance(cause, urllib3.exceptions.NewConnectionError)
        if isinstance(cause, urllib3.exceptions.TimeoutError) and not is_other:
            return TimeoutError()
        inner = next((arg for arg in cause.args if isinstance(arg, Exception)), None)
        cause = getattr(cause, "reason", None) or inner or cause.__cause__
    return cause if isinstance(cause, OSError) else OSError(f"no HTTP answer: {exc}")
