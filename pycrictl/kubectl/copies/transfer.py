"""The bytes of a session, there or back, over as many connections as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import NoReturn

from pycrictl.copy.transfer.flow import next_event, receive, send
from pycrictl.copy.transfer.messages import (
    Acknowledgement,
    Arriving,
    Event,
    ResumableProtocol,
    StatusText,
)
from pycrictl.errors import PycrictlError, RemoteProtocolError, StreamError
from pycrictl.foreign import count, parsed
from pycrictl.kubectl.copies.api import CopyApi, error_of
from pycrictl.kubectl.copies.patience import Patience


class Reconnecting:
    """Moves the archive of a session, whose name may change.

    Args:
        on_bytes: called with how much more is where it shall be.
        idle_s: how long the agent may be silent.
    """

    def __init__(
        self,
        api: CopyApi,
        session: str,
        patience: Patience,
        on_bytes: Callable[[int], None],
        *,
        idle_s: float,
    ) -> None:
        self._api = api
        self.session = session
        self._patience = patience
        self._on_bytes = on_bytes
        self._idle_s = idle_s
        self._shown = 0
        self._has_bytes = 0
        self._sign_s = 0.0

    def send(
        self, pieces: Callable[[int], Generator[memoryview, None, None]], size_bytes: int
    ) -> None:
        self._patience.insist(lambda: self._send(pieces, size_bytes))

    def receive(self, arriving: Arriving) -> Iterator[memoryview]:
        """Yield the rest of an archive, each piece valid until the next is asked for."""
        self._progressed(arriving.offset)
        protocol = ResumableProtocol(is_client=True, is_sender=False)
        while not arriving.is_whole:
            try:
                with self._api.open(self.session, arriving.offset) as link:
                    yield from receive(
                        link, protocol, arriving, on_status=_refuse, on_taken=self._progressed
                    )
            except PycrictlError as exc:
                self._patience.bear(exc)

    def _send(
        self, pieces: Callable[[int], Generator[memoryview, None, None]], size_bytes: int
    ) -> None:
        protocol = ResumableProtocol(is_client=True, is_sender=True)
        with self._api.open(self.session, 0) as link:
            self._take(next_event(link, protocol))
            offset = self._has_bytes
            if offset > size_bytes:
                raise RemoteProtocolError("the agent has more than there is")
            with closing(pieces(offset)) as found:
                send(
                    link,
                    protocol,
                    found,
                    self._take,
                    offset=offset,
                    size_bytes=size_bytes,
                    on_sent=self._check_silence,
                )
            while self._has_bytes < size_bytes:
                self._take(next_event(link, protocol))

    def _take(self, event: Event) -> None:
        if isinstance(event, StatusText):
            _refuse(event)
        elif isinstance(event, Acknowledgement):
            self._has_bytes, self._sign_s = event.offset, time.monotonic()
            self._progressed(event.offset)

    def _check_silence(self, _: int) -> None:
        if time.monotonic() - self._sign_s > self._idle_s:
            raise StreamError(f"the agent was silent for {self._idle_s:g} s")

    def _progressed(self, offset: int) -> None:
        if offset > self._shown:
            self._on_bytes(offset - self._shown)
            self._shown = offset
            self._patience.renew()


def _refuse(status: StatusText) -> NoReturn:
    """Raise why the agent refuses to go on; see ``error_of``."""
    body = bytes(status.data)
    raise error_of(count(parsed(body).get("code")) or 500, body)
