"""The connection to a runtime, and calls over it.

A client serves both services of ``runtime.v1``, since runtimes offer them on one socket: ``ps`` and
its like need a second one only when the image endpoint is configured to be another.

Nothing is sent to validate a connection: a plain ``connect()`` finds what is wrong with a socket
without a round trip, and a call that fails for want of a connection is followed by a post-mortem.

Calls that are waited for are made without gRPC (``exchange``), whose import takes as long as all
else that a short command does; it is there for those that run beside each other (``pending``).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from pycrictl._proto import cri_pb2
from pycrictl.config import DEFAULT_ENDPOINTS, Config, socket_path
from pycrictl.cri.calls.call import DEFAULT, Attempt, Timeout, unreachable
from pycrictl.cri.calls.diagnose import MISSING, SOCKET_HINT, Obstacle, try_connect
from pycrictl.cri.calls.exchange import exchange
from pycrictl.cri.calls.methods import method
from pycrictl.errors import ConnectError, PycrictlError
from pycrictl.signals import undisturbed
from pycrictl.wire import codes
from pycrictl.wire.client_call import ClientCall

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

    from pycrictl.cri.calls.pending import PendingCall
    from pycrictl.cri.calls.tracing import Tracer

log = logging.getLogger("pycrictl.cri")

MESSAGE_LIMIT_BYTES: Final = 16 * 1024 * 1024
DISCOVERY_TIMEOUT_S: Final = 1.0

_LONGEST_HANDSHAKE_S: Final = 20.0
_USER_AGENT: Final = "pycrictl"


def open_client(
    config: Config,
    service: Literal["runtime", "image"] = "runtime",
    *,
    endpoints: Sequence[str] = DEFAULT_ENDPOINTS,
) -> CriClient:
    """Connect to the configured endpoint of a service, or to the first runtime that answers.

    An endpoint that somebody configured is tried again, ``max_retries`` times with growing pauses,
    while its socket does not exist or nobody listens on it.

    Args:
        config: names the endpoint, the timeout and the retries.
        service: whose endpoint to take.
        endpoints: where to look when none is configured: absolute paths, with ``unix://`` or not.

    Raises:
        UsageError: the endpoint is empty or of another kind than a unix socket.
        ConnectError: it cannot be reached; or, when looking, none of the endpoints answers.
    """
    endpoint = config.runtime_endpoint if service == "runtime" else config.image_endpoint
    timeout_s = config.timeout_s.value
    if endpoint.origin == "default":
        return _discover(endpoints, timeout_s)
    path = str(Path(socket_path(endpoint, f"{service}-endpoint")).absolute())
    _wait_for_socket(path, timeout_s, config.max_retries.value)
    return CriClient(path, timeout_s=timeout_s)


def retry_pauses(max_retries: int) -> Iterator[float]:
    """Seconds to wait before each retry: 0.5, 1, 2, 4, 5, 5 …; without end if it is negative."""
    pauses = itertools.chain((0.5, 1.0, 2.0, 4.0), itertools.repeat(5.0))
    return pauses if max_retries < 0 else itertools.islice(pauses, max_retries)


class CriClient:
    """Calls to one runtime.

    Every failure is a ``PycrictlError`` whose message names what was being done (``what``, by
    default the call's name). Close it, or use it as a context manager: that cancels what still
    runs.

    Attributes:
        path: the socket's; it must be absolute.
        endpoint: ``unix://`` and that path.
        timeout_s: the global timeout.
        runtime: name and version of the runtime, once a ``Version`` call has told them, else "".
        tracer: gets a span for each call; None to trace nothing.
    """

    def __init__(self, path: str, *, timeout_s: float) -> None:
        self.path = path
        self.endpoint = f"unix://{path}"
        self.timeout_s = timeout_s
        self.runtime = ""
        self.tracer: Tracer | None = None
        # A server that hangs must not do so for as long as a call without a deadline may take.
        self._handshake_s = min(max(timeout_s, 0.1), _LONGEST_HANDSHAKE_S)
        self._channel: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.Channel:
        """A gRPC channel to the socket, which is opened when it is asked for."""
        if self._channel is None:
            from pycrictl.cri.calls.pending import open_channel

            self._channel = open_channel(
                self.path, handshake_s=self._handshake_s, limit_bytes=MESSAGE_LIMIT_BYTES
            )
        return self._channel

    def call(
        self,
        name: str,
        request: Message,
        *,
        timeout_s: Timeout = DEFAULT,
        what: str | None = None,
        timeout_flag: str = "--timeout",
    ) -> Any:
        """Make a unary call and wait for its answer; Ctrl-C cancels it.

        Args:
            name: of the call, such as ``ListImages``.
            request: its request message.
            timeout_s: deadline in seconds from now, None for none.
            what: what is being done, for the message of an error.
            timeout_flag: the flag that sets ``timeout_s``, for the same.

        Raises:
            RuntimeFault: the runtime answered with an error status, or not in time.
            ConnectError: the connection could not be made, or broke.
            RemoteProtocolError: the answer is not the message that the API says.
        """
        attempt = Attempt(self, method(name), request, timeout_s, what, timeout_flag)
        call = self._prepared(attempt, request)
        for _ in self._exchanged(attempt, call):
            """A unary call has no stream."""
        assert call.answer is not None
        return attempt.decoded(call.answer.response or b"")

    def start(
        self,
        name: str,
        request: Message,
        *,
        timeout_s: Timeout = DEFAULT,
        what: str | None = None,
        timeout_flag: str = "--timeout",
    ) -> PendingCall:
        """Begin a unary call; arguments as for ``call``."""
        from pycrictl.cri.calls.pending import PendingCall

        attempt = Attempt(self, method(name), request, timeout_s, what, timeout_flag)
        return PendingCall(self.channel, request.SerializeToString(), attempt)

    def stream(
        self,
        name: str,
        request: Message,
        *,
        timeout_s: Timeout = DEFAULT,
        what: str | None = None,
        timeout_flag: str = "--timeout",
    ) -> Generator[Any, None, None]:
        """Make a call that answers with a stream; arguments and errors as for ``call``.

        The call begins with the first message that is asked for. It is cancelled when the iterator
        is closed or left by an exception.
        """
        attempt = Attempt(self, method(name), request, timeout_s, what, timeout_flag)
        for message in self._exchanged(attempt, self._prepared(attempt, request)):
            yield attempt.decoded(message)

    def _prepared(self, attempt: Attempt, request: Message) -> ClientCall:
        return ClientCall(
            attempt.method.path,
            request.SerializeToString(),
            metadata=attempt.metadata,
            timeout_s=attempt.deadline_s,
            user_agent=_USER_AGENT,
            limit_bytes=MESSAGE_LIMIT_BYTES,
            is_stream=attempt.method.is_stream,
        )

    def _exchanged(self, attempt: Attempt, call: ClientCall) -> Generator[bytes, None, None]:
        """The messages of a stream; raises if the call fails."""
        try:
            status = yield from exchange(
                self.path, call, timeout_s=attempt.deadline_s, handshake_s=self._handshake_s
            )
        except KeyboardInterrupt:
            attempt.end("interrupted")
            raise
        finally:
            if attempt.span is not None and not attempt.span.end_ns:
                attempt.end()
        if status.code != codes.OK:
            raise attempt.failure(status)

    def close(self) -> None:
        """Cancel what still runs and close the connection. Closing twice does nothing."""
        if self._channel is not None:
            with undisturbed():
                self._channel.close()

    def __enter__(self) -> CriClient:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _wait_for_socket(path: str, timeout_s: float, max_retries: int) -> None:
    pauses = retry_pauses(max_retries)
    for attempt in itertools.count(1):
        connection = try_connect(path, timeout_s)
        if not isinstance(connection, Obstacle):
            connection.close()
            return
        pause_s = next(pauses, None) if connection.may_pass else None
        if pause_s is None:
            where = unreachable(f"unix://{path}")
            raise ConnectError(where + connection.reason, hint=connection.hint)
        log.debug("= attempt %d: %s; again in %gs", attempt, connection.reason, pause_s)
        time.sleep(pause_s)


def _discover(endpoints: Sequence[str], timeout_s: float) -> CriClient:
    """The first endpoint that answers a ``Version`` call."""
    failures: list[str] = []
    hint = ""
    for endpoint in endpoints:
        client = CriClient(endpoint.removeprefix("unix://"), timeout_s=timeout_s)
        obstacle = _probe(client)
        if obstacle is None:
            log.debug("= no endpoint is configured; %s answers", endpoint)
            return client
        client.close()
        log.debug("= no endpoint is configured; %s: %s", endpoint, obstacle.reason)
        failures.append(f"{endpoint} ({obstacle.reason})")
        if obstacle.reason != MISSING:
            hint = hint or obstacle.hint
    raise ConnectError(
        f"no container runtime answers: {', '.join(failures)}", hint=hint or SOCKET_HINT
    )


def _probe(client: CriClient) -> Obstacle | None:
    """What keeps the runtime from answering a ``Version`` call, None when it does."""
    connection = try_connect(client.path, DISCOVERY_TIMEOUT_S)
    if isinstance(connection, Obstacle):
        return connection
    connection.close()
    timeout_s = min(client.timeout_s, DISCOVERY_TIMEOUT_S)
    try:
        client.call("Version", cri_pb2.VersionRequest(), timeout_s=timeout_s)
    except PycrictlError as error:
        reason = error.message.removeprefix(unreachable(client.endpoint))
        return Obstacle(reason.removeprefix("Version: "), error.hint or "")
    return None
