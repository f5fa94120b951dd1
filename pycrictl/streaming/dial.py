"""Opens the connection behind a stream URL: TCP or TLS, by asyncio."""

from __future__ import annotations

import asyncio

from pycrictl.streaming.connection import Connection
from pycrictl.streaming.target import Target, TlsFiles, cannot_connect, tls_context


async def dial(target: Target, *, timeout_s: float, tls: TlsFiles | None = None) -> Connection:
    """Open a connection. The caller owns it and must close or abort it.

    Args:
        tls: without it, no certificate is verified, because runtimes sign their own; crictl does
            the same. With it, the server's certificate must be valid and for its name.

    Raises:
        ConnectError: the peer cannot be reached in time, or TLS failed.
        ConfigError: the files of ``tls`` cannot be used.
    """
    context = tls_context(tls) if target.is_tls else None
    server_name = (tls.server_name if tls else None) or target.host
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(target.label),
                target.host,
                target.port,
                ssl=context,
                server_hostname=server_name if context else None,
            )
    except (OSError, UnicodeError) as exc:
        raise cannot_connect(target, exc, timeout_s) from exc
    return connection
