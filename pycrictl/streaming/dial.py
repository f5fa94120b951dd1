"""Opens the connection behind a stream URL: TCP, TLS or a Unix socket, by asyncio."""

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
    server_name = ((tls.server_name if tls else None) or target.host) if context else None
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(target.label)

    try:
        async with asyncio.timeout(timeout_s):
            if target.socket:
                _, connection = await loop.create_unix_connection(
                    make, target.socket, ssl=context, server_hostname=server_name
                )
            else:
                _, connection = await loop.create_connection(
                    make, target.host, target.port, ssl=context, server_hostname=server_name
                )
    except (OSError, UnicodeError) as exc:
        raise cannot_connect(target, exc, timeout_s) from exc
    return connection
