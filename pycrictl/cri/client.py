"""The connection to a runtime, and calls over it.

A client serves both services of ``runtime.v1``, since runtimes offer them on one socket: ``ps`` and
its like need a second one only when the image endpoint is configured to be another.

Nothing is sent to validate a connection: a plain ``connect()`` finds what is wrong with a socket
without a round trip, and a call that fails for want of a connection is followed by a post-mortem.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc

from pycrictl._proto import cri_pb2
from pycrictl.config import DEFAULT_ENDPOINTS, Config, socket_path
from pycrictl.cri.call import DEFAULT, Attempt, PendingCall, Timeout, unreachable
from pycrictl.cri.diagnose import MISSING, SOCKET_HINT, Obstacle, try_connect
from pycrictl.cri.methods import method
from pycrictl.errors import ConnectError, PycrictlError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.tracing import Tracer

log = logging.getLogger("pycrictl.cri")

MESSAGE_LIMIT_BYTES: Final = 16 * 1024 * 1024
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
        channel: the gRPC channel, for other services on the same socket.
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
        self.channel = grpc.insecure_channel(
            _target(path),
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
                ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
                ("grpc.primary_user_agent", "pycrictl"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.enable_retries", 0),
                ("grpc.service_config_disable_resolution", 1),
                # Clients must not share a connection, or a failure of one delays another.
                ("grpc.use_local_subchannel_pool", 1),
                # How long a server may take to shake hands; the default of 20 s would rule calls
                # without a deadline, such as PullImage, on a runtime that hangs.
                ("grpc.min_reconnect_backoff_ms", int(min(max(timeout_s, 0.1), 20.0) * 1000)),
            ),
        )

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
        pending = self.start(
            name, request, timeout_s=timeout_s, what=what, timeout_flag=timeout_flag
        )
        return pending.result()

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
        attempt = Attempt(self, method(name), request, timeout_s, what, timeout_flag)
        # The answer is decoded in PendingCall: grpc would log a traceback when it cannot.
        remote: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            attempt.method.path
        )
        future = remote.future(
            request.SerializeToString(), timeout=attempt.deadline_s, metadata=attempt.metadata
        )
        return PendingCall(future, attempt)

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
        remote: grpc.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(
            attempt.method.path
        )
        answers = remote(
            request.SerializeToString(), timeout=attempt.deadline_s, metadata=attempt.metadata
        )
        try:
            for answer in answers:
                yield attempt.decoded(answer)
        except grpc.RpcError as exc:
            raise attempt.failure(exc) from None
        finally:
            answers.cancel()
            if attempt.span is not None and not attempt.span.end_ns:
                attempt.end()

    def close(self) -> None:
        """Cancel what still runs and close the connection. Closing twice does nothing."""
        self.channel.close()

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


def _target(path: str) -> str:
    """The socket of an absolute path as gRPC wants it: a URI, so odd characters are escaped."""
    if re.fullmatch(r"[A-Za-z0-9/._-]+", path):
        return f"unix:{path}"
    from urllib.parse import quote as percent_encoded

    return f"unix:{percent_encoded(os.fsencode(path))}"
