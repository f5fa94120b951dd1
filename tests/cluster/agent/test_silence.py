"""The agent's connections to the API server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kube.apiserver import make_node_certificates

WATCH = """
import asyncio, fcntl, socket, ssl, struct, sys, time
from pycrictl.base.errors import PycrictlError
from pycrictl.cluster.agent import asyncapi
from pycrictl.kube.credential import Credential

def switch(flags):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", flags))  # SIOCSIFFLAGS

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    writer.write(b'20\\r\\n{"type": "ADDED", "object": {}}\\n\\r\\n')
    await asyncio.sleep(60)  # what nobody holds is closed from 3.13 on

async def main():
    asyncapi.SILENT_S = 3
    switch(1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, ca = sys.argv[1:]
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    api = asyncapi.AsyncApiClient(lambda: Credential("", "", url, authority=open(ca).read()))
    watch = api.watch("/", {"timeoutSeconds": "300"})
    assert await anext(watch)
    pending = asyncio.ensure_future(anext(watch))
    assert not (await asyncio.wait([pending], timeout=4))[0]  # it has nothing to send, and answers
    switch(0)
    begun = time.monotonic()
    try:
        await pending
    except PycrictlError as exc:
        print(f"{time.monotonic() - begun:.0f} s: {exc.message}")
    await api.close()

asyncio.run(main())
"""


@pytest.mark.root
def test_a_watch_notices_a_network_that_has_gone_silent(run_folder: Path) -> None:
    made = make_node_certificates(run_folder)
    files = made.cert("server"), made.key("server"), made.ca
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", WATCH, *files],
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    took_s, _, message = done.stdout.partition(" s: ")
    assert int(took_s) < 60, "less than the time limit of a watch"
    assert message.startswith("cannot reach the API server at ")
