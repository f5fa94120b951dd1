"""kubectl itself: one-shot calls and ``kubectl proxy``, with the options of one command line."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from typing import IO, Any, Final

from pycrictl.base.errors import (
    ConnectError,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    reason_of,
)
from pycrictl.base.foreign import parse
from pycrictl.cluster.agent.api.names import GROUP
from pycrictl.cluster.kubectl import api_errors
from pycrictl.streams.bytestream import dial
from pycrictl.streams.opening import Exchange
from pycrictl.streams.target import Target

NAME: Final = "kubectl"

_REPEATED: Final = re.compile(r"[EF]\d{4} \d\d:\d\d:\d\d\.|\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ")
"""Matches lines of kubectl's log, which repeat its answer or its last line."""

_MOST_LINES: Final = 100

AGENTS_ONLY: Final = rf"--accept-paths=^/apis/{GROUP.replace('.', '[.]')}(/.*)?$"
READ_ONLY: Final = "--reject-methods=^(POST|PUT|PATCH|DELETE)$"
"""Options of ``kubectl proxy``: it forwards only to the agents' API, or only requests to read."""

MAX_LIST_BYTES: Final = 64 << 20
READY_S: Final = 20.0
"""How long kubectl may take to listen; it starts slowly on a busy machine."""

_PR_SET_PDEATHSIG: Final = 1
_ENDS_S: Final = 2.0


class Kubectl:
    def __init__(self, options: Sequence[str], note: Callable[[str], None]) -> None:
        self._options = list(options)
        self.note = note

    def output(self, *words: str) -> bytes:
        errors: list[str] = []
        with self.start(words) as process:
            try:
                output, said = process.communicate()
            except BaseException:
                process.kill()
                raise
        self._read(BytesIO(said), errors)
        if process.returncode:
            raise api_errors.of_text("\n".join(errors), process.returncode)
        return output

    def documents(self, *words: str) -> Any:
        try:
            return parse(self.output(*words))
        except ValueError:
            raise RemoteProtocolError(f"kubectl {words[0]} did not write JSON") from None

    def why_not_served(self) -> PycrictlError:
        """Return why the API server does not serve the agents' API, or not all of it."""
        try:
            self.documents("get", "--raw", api_errors.OFFERED_AT)
        except NotFound:
            return api_errors.not_installed()
        except PycrictlError as exc:
            return exc
        return api_errors.other_version()

    def start(self, words: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start a call; its outputs are pipes."""
        command = [NAME, *words, *self._options]
        try:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings
            )
        except FileNotFoundError:
            raise ConnectError(
                "kubectl is not installed, or not on PATH",
                hint="see https://kubernetes.io/docs/tasks/tools/",
            ) from None
        except OSError as exc:
            raise ConnectError(f"cannot run kubectl: {reason_of(exc)}") from exc

    @contextmanager
    def listening(self, process: subprocess.Popen[bytes]) -> Iterator[Callable[[], str]]:
        """Read the standard error of a running call, and pass its notes on."""
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=self._read, args=(process.stderr, errors), daemon=True)
        reader.start()

        def complaint() -> str:
            reader.join(1.0)  # a child process of kubectl may hold the pipe open
            return "\n".join(errors)

        try:
            yield complaint
        finally:
            reader.join(1.0)

    def _read(self, stream: IO[bytes], errors: list[str]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                if api_errors.is_error(line):
                    errors.append(line)
                    del errors[:-_MOST_LINES]
                elif line and not _REPEATED.match(line):
                    self.note(line)


class KubectlProxy:
    """A running ``kubectl proxy``, on a private socket: the transport of streams to the API server.

    The proxy gives anybody who can connect to its socket the user's rights. So the socket is
    created in a folder that only the user can enter, which is removed once the socket exists: this
    program connects by a descriptor. The proxy forwards only to the paths that callers need, and
    always ends with this program. Use it in a ``with`` statement, in the main thread.

    Entering raises the same errors as ``target``.

    Args:
        kubectl: has the connection's options.
        options: options of ``kubectl proxy`` that limit what it forwards.
    """

    def __init__(self, kubectl: Kubectl, options: Sequence[str] = (AGENTS_ONLY,)) -> None:
        self._kubectl = kubectl
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._running = ExitStack()
        self._socket = ""

    def __enter__(self) -> KubectlProxy:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def target(self, path: str) -> Target:
        """Return the target for a path of the API server; restart kubectl if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return Target("http", "localhost", 80, path, self._socket)

    def _start(self) -> None:
        self._running.close()
        with (
            tempfile.TemporaryDirectory(prefix="pycrictl-kubectl-") as folder,
            ExitStack() as stack,
        ):
            words = ["proxy", f"--unix-socket={folder}/s", *self._options]
            process = self._kubectl.start(
                words,
                stdin=subprocess.DEVNULL,
                preexec_fn=_ending_with(os.getpid()),
                process_group=0,  # Ctrl-C must not reach it; this program ends it
            )
            complaint = stack.enter_context(self._kubectl.listening(process))
            stack.callback(_end, process)
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], READY_S)
            if not ready:
                raise ConnectError(f"kubectl proxy did not listen within {READY_S:g} s")
            if not process.stdout.readline():
                code = process.wait()
                raise api_errors.of_text(complaint(), code)
            socket = os.open(f"{folder}/s", os.O_PATH)
            stack.callback(os.close, socket)
            self._process, self._socket = process, f"/proc/self/fd/{socket}"
            self._running = stack.pop_all()


async def read(
    target: Target, method: str = "GET", body: bytes = b"", *, timeout_s: float = 30.0
) -> AsyncIterator[bytes]:
    """Send a JSON request, and yield the body of its response; raise UpgradeRefused if not 2xx.

    ``timeout_s`` limits connecting, and then the time until the response begins.
    """
    connection = await dial(target, timeout_s=timeout_s)
    headers = [("Accept", "application/json"), ("Content-Type", "application/json")]
    try:
        exchange = Exchange(connection, target, method, headers, body)
        response = await exchange.request(timeout_s=timeout_s)
        if response.status_code >= 300:
            raise await exchange.refused()
        while data := await exchange.read():
            yield data
    finally:
        connection.abort()


async def fetch(
    target: Target, method: str = "GET", body: bytes = b"", *, timeout_s: float = 30.0
) -> bytes:
    """Return the body of a response, as ``read`` does."""
    content = bytearray()
    async for data in read(target, method, body, timeout_s=timeout_s):
        content += data
        if len(content) > MAX_LIST_BYTES:
            raise RemoteProtocolError("the API server's answer is too long")
    return bytes(content)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _ending_with(parent: int) -> Callable[[], None]:
    """Return a ``preexec_fn`` that lets the kernel kill a child when its parent ends.

    For the kernel, the parent is the thread that created the child: it must be the main thread.
    """
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has already ended
            os._exit(1)

    return prepare
