"""The opening handshake of a WebSocket (RFC 6455, 4) on both sides, by ``websockets``. Pure.

The library makes and checks the handshake's fields. The HTTP heads around them are read and
written elsewhere (``http1``; aiohttp in the agent), since a server may decline the upgrade
with a plain response or serve other URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from pycrictl.base.errors import RemoteProtocolError
from pycrictl.base.units import escape
from pycrictl.streams.wire.http1 import SWITCHING_PROTOCOLS, ResponseHead

_NAME: Final = re.compile("connection|upgrade|sec-websocket-.*", re.IGNORECASE)
_ANYWHERE: Final = WebSocketURI(
    secure=False, host="localhost", port=80, path="/", query="", username=None, password=None
)


class ClientHandshake:
    """A client's side; ``protocol`` is the subprotocol that it requires, empty for none."""

    def __init__(self, protocol: str = "") -> None:
        self._wanted = protocol
        offered = [Subprotocol(protocol)] if protocol else None
        self._protocol = ClientProtocol(_ANYWHERE, subprotocols=offered)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header fields of the request, which is a GET, without ``Host``."""
        fields = self._protocol.connect().headers
        return [(name, value) for name, value in fields.raw_items() if name != "Host"]

    def check(self, response: ResponseHead) -> None:
        """Require that a 101 accepts the handshake (RFC 6455, 4.1) and the subprotocol."""
        try:
            fields = _of_handshake(response.headers.raw_items())
            self._protocol.process_response(Response(response.status, response.reason, fields))
        except InvalidHandshake as exc:
            raise RemoteProtocolError(
                f"the server's WebSocket handshake is wrong: {escape(str(exc))}"
            ) from exc
        if (self._protocol.subprotocol or "") != self._wanted:
            raise RemoteProtocolError(f"the server does not speak {self._wanted}")


def accepted(fields: Iterable[tuple[str, str]], protocol: str = "") -> bytes | None:
    """Return the response head that accepts a WebSocket; None if the request is invalid.

    The client must have offered ``protocol``, unless it is empty.
    """
    server = ServerProtocol(subprotocols=[Subprotocol(protocol)] if protocol else None)
    try:
        response = server.accept(Request("/", _of_handshake(fields)))
    except InvalidHandshake:
        return None
    return response.serialize() if response.status_code == SWITCHING_PROTOCOLS else None


def _of_handshake(fields: Iterable[tuple[str, str]]) -> Headers:
    """Return the fields that the library needs.

    Empty ones are dropped, as the runtimes' server sends an empty Sec-WebSocket-Protocol.
    """
    return Headers([(name, value) for name, value in fields if value and _NAME.fullmatch(name)])
