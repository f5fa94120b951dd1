"""Calls to a runtime, at a configured endpoint or at the first that answers.

A client serves both services of ``runtime.v1``, since runtimes offer them on one socket: ``ps`` and
its like need a second one only when the image endpoint is configured to be another.

Nothing is sent to validate a connection: a plain ``connect()`` finds what is wrong with a socket
without a round trip.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from pycrictl._proto import cri_pb2
from pycrictl.config import DEFAULT_ENDPOINTS, Config, socket_path
from pycrictl.cri.calls.call import Call, Terms
from pycrictl.cri.calls.errmap import connect_error, unreachable
from pycrictl.cri.calls.obstacle import MISSING, SOCKET_HINT, Obstacle, try_connect
from pycrictl.errors import Cancelled, ConnectError, PycrictlError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.tracing import Tracer

log = logging.getLogger("pycrictl.cri")

DISCOVERY_TIMEOUT_S: Final = 1.0


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
    """Return the seconds to wait before each retry: 0.5, 1, 2, 4, 5, 5 …; endless if negative."""
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
        runtime: name and version of the runtime, once a ``Version`` call has given them, else "".
        tracer: gets a span for each call; None to trace nothing.
    """

    def __init__(self, path: str, *, timeout_s: float) -> None:
        self.path = path
        self.endpoint = f"unix://{path}"
        self.timeout_s = timeout_s
        self.runtime = ""
        self.tracer: Tracer | None = None
        self._running: set[Call] = set()
        self._is_closed = False

    def branch(self) -> CriClient:
        """Return another client of the same runtime, which can be closed by itself."""
        branch = CriClient(self.path, timeout_s=self.timeout_s)
        branch.runtime, branch.tracer = self.runtime, self.tracer
        return branch

    def call(self, name: str, request: Message, **terms: Unpack[Terms]) -> Any:
        """Make a unary call and wait for its answer; Ctrl-C cancels it.

        Args:
            name: of the call, such as ``ListImages``.
            request: its request message.
            terms: its deadline, and what is said of it in the message of an error.

        Raises:
            RuntimeFault: the runtime answered with an error status, or not in time.
            ConnectError: the connection could not be made.
            RemoteProtocolError: the answer is not the message that the API says.
        """
        return self.start(name, request, **terms).answer()

    def start(self, name: str, request: Message, **terms: Unpack[Terms]) -> Call:
        """Begin a call; arguments as for ``call``.

        Raises:
            Cancelled: the client has been closed.
        """
        if self._is_closed:
            raise Cancelled(f"{terms.get('what', name)}: cancelled", code="Canceled")
        call = Call(self, name, request, terms)
        self._running.add(call)
        if self._is_closed:  # by another thread meanwhile
            call.cancel()
        return call

    def stream(
        self, name: str, request: Message, **terms: Unpack[Terms]
    ) -> Generator[Any, None, None]:
        """Make a call that answers with a stream; arguments and errors as for ``call``.

        The call begins with the first message that is asked for. It is cancelled when the iterator
        is closed or left by an exception.
        """
        yield from self.start(name, request, **terms).messages()

    def forget(self, call: Call) -> None:
        """Take note that a call has ended."""
        self._running.discard(call)

    def close(self) -> None:
        """Cancel what still runs, in whatever thread. Closing twice does nothing."""
        self._is_closed = True
        for call in tuple(self._running):
            call.cancel()

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
            raise connect_error(connection, f"unix://{path}")
        log.debug("= attempt %d: %s; again in %gs", attempt, connection.reason, pause_s)
        time.sleep(pause_s)


def _discover(endpoints: Sequence[str], timeout_s: float) -> CriClient:
    """Return a client of the first endpoint that answers a ``Version`` call."""
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
    """Return what keeps the runtime from answering a ``Version`` call, None when it does."""
    connection = try_connect(client.path, DISCOVERY_TIMEOUT_S)
    if isinstance(connection, Obstacle):
        return connection
    connection.close()
    timeout_s = min(client.timeout_s, DISCOVERY_TIMEOUT_S)
    try:
        client.call("Version", cri_pb2.VersionRequest(), timeout_s=timeout_s)
    except PycrictlError as error:
        reason = error.message
        for known in (
            unreachable(client.endpoint),
            "Version: ",
            f'the runtime at "{client.endpoint}" ',
        ):
            reason = reason.removeprefix(known)
        return Obstacle(reason, error.hint or "")
    return None
