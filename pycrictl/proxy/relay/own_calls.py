"""The calls of one client that the proxy answers, in the windows that all its calls share. Pure.

The client's connection window is one for these answers and the runtime's, and only partly known to
the runtime: what own answers took of it is withheld from its next update (``debt_bytes``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from pycrictl.proxy.relay.budget import Budget
from pycrictl.proxy.relay.calls import Abandoned, Answer, CallRequest, Requested
from pycrictl.proxy.relay.http2_streams import OwnStream, Streams
from pycrictl.wire import codes, grpc_http2, hpack, http2, limits
from pycrictl.wire.hpack import Header
from pycrictl.wire.http2 import ErrorCode, StreamFault
from pycrictl.wire.http2_reader import Unit


class OwnCalls:
    """Takes the requests and sends the answers.

    Args:
        streams: all calls of the client.
        to_client: gets the frames for it.
        idle: what the client may send for nothing; each answer's frame earns it more.
        budget: what own calls hold, of all clients together.
        on_output: called when a call is given up for another client's sake, so that there is
            something to send.

    Attributes:
        window_bytes: what the client takes on its connection.
        debt_bytes: what of that the runtime does not know to be taken.
        has_runtime: whether there is a runtime that would have to know.
    """

    def __init__(
        self,
        streams: Streams,
        to_client: list[bytes],
        *,
        idle: limits.Allowance,
        budget: Budget,
        on_output: Callable[[], object],
    ) -> None:
        self.window_bytes = http2.DEFAULT_WINDOW_BYTES
        self.debt_bytes = 0
        self.has_runtime = True
        self._streams = streams
        self._to_client = to_client
        self._idle = idle
        self._held = budget.share(self._give_up)
        self._on_output = on_output
        # The client's SETTINGS that it has no acknowledgement of. Before that it holds answers to
        # the old ones.
        self._unacknowledged: deque[list[tuple[int, int]]] = deque()
        self._stream_window_bytes = http2.DEFAULT_WINDOW_BYTES
        self._table_bytes = hpack.DEFAULT_TABLE_BYTES
        self._starved: dict[int, OwnStream] = {}  # only the connection's window holds them up

    # Requests

    def begin(
        self, stream_id: int, path: str, headers: list[Header], *, is_end: bool, now: float
    ) -> None:
        """Begin a call with its headers, which are right as HTTP."""
        stream = OwnStream(
            path,
            now,
            is_client_done=is_end,
            headers=headers,
            window_bytes=self._stream_window_bytes,
            dropped=partial(self._dropped, stream_id),
        )
        self._streams.by_id[stream_id] = stream
        self._held.add(stream_id, hpack.size_of(headers), now)
        refusal = grpc_http2.refusal(headers)
        if refusal is not None:
            self.answer(stream_id, refusal, now)
        elif is_end:
            self._complete(stream_id, stream, now)

    def take(self, unit: Unit, stream: OwnStream, buffer: bytes, now: float) -> None:
        """Take a frame of a call, other than HEADERS and RST_STREAM.

        Raises:
            StreamFault: it must not come.
        """
        kind, flags, stream_id, pos, stop = unit
        if kind == http2.DATA:
            is_end = bool(flags & http2.END_STREAM)
            length = stop - pos - http2.HEAD_BYTES
            stream.request_bytes += length
            if length:
                self._to_client.append(http2.window_update(0, length))
                if not is_end:
                    self._to_client.append(http2.window_update(stream_id, length))
            self._receive(stream_id, stream, http2.data_of(buffer, pos, stop), is_end, now)
        elif kind == http2.WINDOW_UPDATE:
            increment = http2.number_of(buffer, pos, stop)
            stream.window_bytes = http2.widened(stream.window_bytes, increment)
            if not stream.is_sent:
                self._flush(stream_id, stream)

    def _receive(
        self, stream_id: int, stream: OwnStream, data: bytes, is_end: bool, now: float
    ) -> None:
        if stream.is_client_done:
            raise StreamFault("a request goes on after its end", ErrorCode.STREAM_CLOSED)
        stream.is_client_done = is_end
        if stream.is_over:
            return
        refusal = stream.receive(data)
        if refusal is not None:
            self.answer(stream_id, refusal, now)
            return
        self._held.add(stream_id, len(data), now)
        if is_end and not stream.is_over:  # as it is if it was given up for that
            self._complete(stream_id, stream, now)

    def _complete(self, stream_id: int, stream: OwnStream, now: float) -> None:
        request = stream.request()
        if isinstance(request, CallRequest):
            self._streams.events.append(Requested(stream_id, request))
        else:
            self.answer(stream_id, request, now)

    def _give_up(self, stream_id: int, now: float) -> None:
        """End a call of which the budget has no more room."""
        self._streams.events.append(Abandoned(stream_id))
        problem = "pycrictl proxy: the requests of all calls under way are too large together"
        self.answer(stream_id, Answer(codes.RESOURCE_EXHAUSTED, problem), now)
        self._on_output()

    def _dropped(self, stream_id: int) -> None:
        self._starved.pop(stream_id, None)
        self._held.drop(stream_id)

    # Answers

    def answer(self, stream_id: int, answer: Answer, now: float) -> None:
        """Answer a call. Nothing happens if it is over."""
        stream = self._streams.by_id.get(stream_id)
        if not isinstance(stream, OwnStream) or stream.is_over:
            return
        head = stream.begin(answer)
        if head is not None:
            self._streams.send_headers(stream_id, hpack.encode(head), end_stream=False)
        self._streams.record(stream, answer.code, now)
        self._flush(stream_id, stream)

    def flush(self) -> None:
        """Send what waits for the connection's window, as far as that goes."""
        while self._starved and self.window_bytes > 0:
            stream_id = next(iter(self._starved))
            self._flush(stream_id, self._starved.pop(stream_id))

    def _flush(self, stream_id: int, stream: OwnStream) -> None:
        """Send what the windows allow of an answer, and its end after it."""
        while not stream.is_sent:
            chunk = stream.next_chunk(self.window_bytes)
            if not chunk:
                if stream.window_bytes > 0:
                    self._starved[stream_id] = stream
                return
            self._idle.earned += limits.IDLE_FRAMES_PER_FRAME
            self._to_client.append(http2.frame(http2.DATA, 0, stream_id, chunk))
            self.window_bytes -= len(chunk)
            if self.has_runtime:
                self.debt_bytes += len(chunk)
        self._streams.finish(stream_id, stream, stream.trailers)

    # Windows

    def widen_connection(self, increment: int) -> int:
        """Let more go to the client; return how much the runtime may know of it.

        Raises:
            StreamFault: by nothing, or too much.
        """
        self.window_bytes = http2.widened(self.window_bytes, increment)
        self.flush()
        withheld = min(self.debt_bytes, increment)
        self.debt_bytes -= withheld
        return increment - withheld

    def announced(self, settings: list[tuple[int, int]]) -> None:
        """Note SETTINGS of the client, which it must be told the acknowledgement of."""
        self._unacknowledged.append(settings)

    def acknowledged(self) -> None:
        """Apply the client's oldest SETTINGS, as they are acknowledged now."""
        if not self._unacknowledged:
            return
        window_bytes = self._stream_window_bytes
        tables = []
        for name, value in self._unacknowledged.popleft():
            if name == http2.INITIAL_WINDOW_SIZE:
                window_bytes = value
            elif name == http2.HEADER_TABLE_SIZE:
                tables.append(value)
        if tables and min(tables) < self._table_bytes:
            self._streams.table_updates = hpack.table_updates(min(tables), tables[-1])
        self._table_bytes = (tables or [self._table_bytes])[-1]
        difference = window_bytes - self._stream_window_bytes
        self._stream_window_bytes = window_bytes
        if difference:
            self._change_windows(difference)

    def _change_windows(self, difference: int) -> None:
        for stream_id, stream in self._streams.own():
            stream.window_bytes = min(stream.window_bytes + difference, http2.MAX_WINDOW_BYTES)
            if not stream.is_sent and stream.window_bytes > 0:
                self._starved[stream_id] = stream

    def lose_runtime(self) -> None:
        """Acknowledge for the runtime what it has not, and owe it nothing any more."""
        self.has_runtime = False
        while self._unacknowledged:
            self._to_client.append(http2.frame(http2.SETTINGS, http2.ACK))
            self.acknowledged()
        self.flush()
