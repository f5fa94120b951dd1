"""Records streams of the throwaway node's containerd for the tests of the cores.

``python -m tests.node.record_streams FILE`` writes them anew.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pycrictl.wire.portforward import ForwardOpened

from .lab import Lab
from .programs import closed_port
from .streams import Trace, open_forward, run_command

EVERY_BYTE = bytes(range(256))


@contextmanager
def echo_server() -> Iterator[int]:
    """A port of this machine that sends back what it got, with a word before it, up to 5 bytes."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                got = b""
                while len(got) < 5 and (piece := connection.recv(5)):
                    got += piece
                connection.sendall(b"got " + got)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def main(path: Path) -> None:
    exchanges: dict[str, dict[str, object]] = {}
    version = subprocess.run(
        ["containerd", "--version"], capture_output=True, text=True, check=True
    )
    with Lab() as lab:
        kubelet = lab.node.kubelet
        reference = lab.reference(lab.busybox)
        kubelet.pull(reference)
        pod = kubelet.run_pod("recorded")
        container = kubelet.create_container(pod, reference)
        kubelet.start_container(container)

        def keep(name: str, what: str, run: Callable[[Trace], object]) -> None:
            trace = Trace()
            run(trace)
            exchanges[name] = {"what": what, "pieces": trace.dump()}

        def command(
            name: str,
            *words: str,
            stdin: bytes | None = None,
            size: tuple[int, int] | None = None,
        ) -> None:
            keep(
                name,
                " ".join(words),
                lambda trace: run_command(
                    kubelet, container, words, stdin=stdin, size=size, trace=trace
                ),
            )

        def forward(name: str, port: int) -> None:
            def run(trace: Trace) -> None:
                driver, core = open_forward(kubelet, pod, port, trace)

                def handle(event: object) -> None:
                    if isinstance(event, ForwardOpened):
                        core.send(b"hello")
                        core.end()

                driver.run(core, handle)

            keep(name, f"port-forward of one connection that sends hello and ends: {name}", run)

        command("cat", "cat", stdin=b"hello\n" + EVERY_BYTE)
        command("outputs-and-exit-7", "sh", "-c", "echo out; echo err >&2; exit 7")
        command("resize", "sh", "-c", "sleep 0.3; stty size", stdin=b"", size=(101, 34))
        command("missing-command", "nosuch")
        with echo_server() as port:
            forward("forward", port)
        with closed_port() as port:
            forward("forward-refused", port)
    document = {"recorded_with": version.stdout.strip(), "exchanges": exchanges}
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
