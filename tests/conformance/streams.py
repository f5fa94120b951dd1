"""The streams behind the URLs, read as any client would: progress, and copies."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

CHANNELS: Final = Subprotocol("v5.channel.k8s.io")
TO, FROM, OUTCOME, END = 0, 1, 3, 255
WAIT_S: Final = 30.0
PIECE_BYTES: Final = 32 * 1024


def opened(url: str, *, subprotocol: Subprotocol | None = None) -> ClientConnection:
    scheme, rest = url.split(":", 1)
    return connect(
        {"http": "ws", "https": "wss"}.get(scheme, scheme) + ":" + rest,
        subprotocols=[subprotocol] if subprotocol else None,
        compression=None,
        max_size=None,
        open_timeout=WAIT_S,
        close_timeout=5,
    ).__enter__()  # the caller closes it


def status_of(url: str) -> int:
    """Return the HTTP status of an upgrade request to a URL; 101 if it is accepted."""
    try:
        opened(url).close()
    except InvalidStatus as exc:
        return exc.response.status_code
    return 101


@dataclass
class Recording:
    """A progress stream as received."""

    texts: list[tuple[float, str]] = field(default_factory=list)
    code: int | None = None
    content_type: str = ""
    kinds: set[str] = field(default_factory=set)
    ended_at: float = 0.0
    error: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages = []
        for _, text in self.texts:
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            messages.append(value if isinstance(value, dict) else {})
        return messages

    @property
    def last(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The last message of each layer, or of the image if none of its layers is known."""
        last = {
            (message.get("image", ""), message.get("layer", "")): message
            for message in self.messages
            if message
        }
        with_layers = {image for image, layer in last if layer}
        return {
            key: message for key, message in last.items() if key[1] or key[0] not in with_layers
        }


class Watcher(threading.Thread):
    """Reads a progress stream to its end."""

    def __init__(
        self,
        url: str,
        *,
        is_plain: bool = False,
        leaves_after: int = 0,
        reads: threading.Event | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.recording = Recording()
        self._leaves_after = leaves_after
        self._reads = reads
        self._socket: ClientConnection | None = None
        if is_plain:
            parts = urlsplit(url)
            self._plain = http.client.HTTPConnection(parts.netloc, timeout=WAIT_S)
            self._plain.request("GET", url.partition(parts.netloc)[2] or "/")
        else:
            self._socket = opened(url)
        self.start()

    def run(self) -> None:
        if self._reads is not None:
            self._reads.wait(WAIT_S * 2)
        try:
            if self._socket is not None:
                self._read_messages(self._socket)
            else:
                self._read_lines()
        except (OSError, WebSocketException, http.client.HTTPException) as exc:
            self.recording.error = f"{type(exc).__name__}: {exc}"
        self.recording.ended_at = time.monotonic()

    def end(self, timeout_s: float = WAIT_S) -> Recording:
        self.join(timeout_s)
        if self.is_alive():
            self.recording.error = f"the stream goes on for more than {timeout_s:.0f} s"
            self.close()
        return self.recording

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError, WebSocketException):
                self._socket.close()
        else:
            self._plain.close()

    def _read_messages(self, connection: ClientConnection) -> None:
        try:
            while True:
                message = connection.recv()
                self.recording.kinds.add("text" if isinstance(message, str) else "binary")
                text = message if isinstance(message, str) else message.decode(errors="replace")
                self.recording.texts.append((time.monotonic(), text))
                if len(self.recording.texts) == self._leaves_after:
                    connection.close()
                    return
        except ConnectionClosed as exc:
            self.recording.code = exc.rcvd.code if exc.rcvd else None

    def _read_lines(self) -> None:
        with closing(self._plain), self._plain.getresponse() as answer:
            self.recording.content_type = answer.headers.get("Content-Type", "")
            for line in answer:
                self.recording.texts.append((time.monotonic(), line.decode(errors="replace")))
            if answer.status == 200:
                self.recording.code = 1000
            else:
                self.recording.error = str(answer.status)


@dataclass(frozen=True)
class Copied:
    """How a copy stream ended."""

    data: bytes
    outcome: dict[str, Any] | None
    code: int | None
    subprotocol: str | None

    @property
    def is_success(self) -> bool:
        return self.outcome is not None and self.outcome.get("status") == "Success"

    @property
    def is_failure(self) -> bool:
        outcome = self.outcome
        return (
            outcome is not None
            and outcome.get("status") == "Failure"
            and bool(outcome.get("message"))
        )


def copied(connection: ClientConnection) -> Copied:
    data, outcome, code = bytearray(), bytearray(), None
    try:
        while True:
            message = connection.recv(timeout=WAIT_S)
            assert isinstance(message, bytes), "a message of a copy stream is binary"
            if message[:1] == bytes((FROM,)):
                data += message[1:]
            elif message[:1] == bytes((OUTCOME,)):
                outcome += message[1:]
    except ConnectionClosed as exc:
        code = exc.rcvd.code if exc.rcvd else None
    chosen = connection.subprotocol
    return Copied(bytes(data), json.loads(outcome) if outcome else None, code, chosen)


def download(url: str) -> Copied:
    with opened(url, subprotocol=CHANNELS) as connection:
        return copied(connection)


def pieces(data: bytes) -> Iterable[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes((TO,)) + data[start : start + PIECE_BYTES]


def upload(url: str, data: bytes) -> Copied:
    """Send an archive to a URL of CopyToContainer, and wait for the outcome."""
    with opened(url, subprotocol=CHANNELS) as connection:
        with suppress(ConnectionClosed):  # refused early: the outcome can still be read
            for piece in pieces(data):
                connection.send(piece)
            connection.send(bytes((END, TO)))
        return copied(connection)
