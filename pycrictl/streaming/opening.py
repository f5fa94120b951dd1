"""One HTTP request and its response: the opening of every stream. It does no IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pycrictl.errors import ConnectError, UpgradeRefused
from pycrictl.streaming.target import Target
from pycrictl.units import quote
from pycrictl.wire.http1 import BodyReceived, ResponseParser, ResponseReceived, serialize_request

REFUSAL_S: Final = 1.0
"""How long to wait for the reason of a refusal."""

MAX_REFUSAL_BYTES: Final = 4096
_MAX_REFUSAL_CHARACTERS: Final = 200


class Opening:
    """A request, with ``Host`` and ``User-Agent`` added, and what has come of its response.

    Attributes:
        request: what to send.
        response: the response's head, once it has come.
        body: what has come of its body; who takes it empties it.
    """

    def __init__(self, target: Target, method: str, headers: Iterable[tuple[str, str]]) -> None:
        fields = [("Host", target.authority), ("User-Agent", "pycrictl"), *headers]
        self.request = serialize_request(method, target.path, fields)
        self.response: ResponseReceived | None = None
        self.body = b""
        self._label = target.label
        self._parser = ResponseParser()

    @property
    def leftover(self) -> bytes:
        """What came after a 101, to be read before anything else from the connection."""
        return self._parser.leftover

    def is_complete(self) -> bool:
        """Return whether all of the response has come.

        Raises:
            StreamError: it ended too early, or is not well-formed.
        """
        error = self._parser.error
        if error is not None:
            raise type(error)(f'{error.message} (from "{self._label}")')
        return self._parser.is_finished

    def receive(self, data: bytes) -> None:
        """Take in bytes from the peer, empty at the end. The response must not be complete."""
        if data:
            self._parser.receive_data(data)
        else:
            self._parser.receive_eof()
        for event in self._parser.events_received():
            if isinstance(event, ResponseReceived):
                self.response = event
            elif isinstance(event, BodyReceived):
                self.body += event.data

    def silence(self, timeout_s: float) -> ConnectError:
        """Make an error of a head that did not come within so many seconds."""
        return ConnectError(
            f'"{self._label}" accepts connections but does not answer within {timeout_s:g} s'
        )

    def refusal(self) -> UpgradeRefused:
        """Make an error of a response that is not what was asked for, with its body so far."""
        assert self.response is not None
        body = self.body[:MAX_REFUSAL_BYTES]
        text = body.decode(errors="replace").strip()
        text = text[:_MAX_REFUSAL_CHARACTERS] or self.response.reason
        status = self.response.status
        said = f"{status}: {quote(text, _MAX_REFUSAL_CHARACTERS)}" if text else f"{status}"
        message = f'"{self._label}" answered with status {said}'
        return UpgradeRefused(message, status=status, body=body)
