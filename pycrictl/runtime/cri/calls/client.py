"""Calls to a runtime: their log lines and answers, and their errors when they fail.

A client serves both services of ``runtime.v1``, since runtimes offer them on one socket. Commands
such as ``ps`` need a second client only if a different image endpoint is configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import Cancelled, PycrictlError, RemoteProtocolError
from pycrictl.base.units import quote
from pycrictl.runtime.cri.calls.channel import GrpcCall, GrpcChannel
from pycrictl.runtime.cri.calls.errmap import Status, one_line, to_error
from pycrictl.runtime.cri.calls.redact import call_log, describe
from pycrictl.streams.wire import codes


class Method(NamedTuple):
    """One call of a service; ``is_stream`` if it answers with a stream."""

    name: str
    path: str
    request_type: type[Message]
    response_type: type[Message]
    is_stream: bool


def method_of(service: ServiceDescriptor, name: str) -> Method:
    """Return a call of a service by name; a KeyError is a bug of the caller."""
    call = service.methods_by_name[name]
    types = GetMessageClass(call.input_type), GetMessageClass(call.output_type)
    return Method(name, f"/{service.full_name}/{name}", *types, bool(call.server_streaming))


@cache
def method(name: str) -> Method:
    """Return the call of that name, which is unique over the runtime and the image service."""
    for service in cri_pb2.DESCRIPTOR.services_by_name.values():
        if name in service.methods_by_name:
            return method_of(service, name)
    raise KeyError(name)


def deadline_s(name: str, request: Any, timeout_s: float) -> float | None:
    """Return the time limit of a call for a global timeout of ``timeout_s``; None for no limit.

    ``RunPodSandbox`` gets twice that; ``StopContainer`` and ``ExecSync`` add their own timeout.
    A pull, the stream of events, and ``ExecSync`` without a timeout in its request have no limit.
    """
    match name:
        case "PullImage" | "GetContainerEvents":
            return None
        case "RunPodSandbox":
            return 2 * timeout_s
        case "StopContainer":
            return timeout_s + max(0, int(request.timeout))
        case "ExecSync":
            return timeout_s + int(request.timeout) if request.timeout > 0 else None
        case _:
            return timeout_s


T = TypeVar("T")
R = TypeVar("R")


class Terms(TypedDict, total=False):
    """The options of a call.

    Attributes:
        timeout_s: deadline in seconds from now, None for none; by default from ``deadline_s``.
        action: what is being done, for error messages; by default the call's name.
        timeout_flag: the flag that sets ``timeout_s``, for error messages; by default the client's.
    """

    timeout_s: float | None
    action: str
    timeout_flag: str


class Call(GrpcCall):
    """A running call, from its first log line to its answer or error."""

    def __init__(self, client: CriClient, name: str, request: Message, terms: Terms) -> None:
        self._client = client
        self._method = method(name)
        self._action = terms.get("action", name)
        self._timeout_flag = terms.get("timeout_flag", client.timeout_flag)
        default_s = deadline_s(name, request, client.timeout_s)
        self._deadline_s = terms.get("timeout_s", default_s)
        self._started = time.monotonic()
        self._log = call_log()
        if self._log:
            self._log.debug("> %s %s", name, describe(request))
        super().__init__(
            client.channel,
            self._method.path,
            request.SerializeToString(),
            timeout_s=self._deadline_s,
            is_stream=self._method.is_stream,
        )

    def answer(self) -> Any:
        """Wait for the answer of a unary call, and return it; Ctrl-C cancels the call."""
        (message,) = self.answers()
        return message

    def answers(self) -> Generator[Any, None, None]:
        """Yield the messages of the answer as they arrive; leaving early cancels the call."""
        with self:
            yield from map(self._decoded, self.messages())
        if self.failure is not None:
            raise self._error_of(self.failure)

    def _decoded(self, answer: bytes) -> Any:
        try:
            message = self._method.response_type.FromString(answer)
        except DecodeError:
            name = self._method.response_type.DESCRIPTOR.name
            text = f"the answer of {quote(self._client.endpoint)} is not a valid {name}"
            raise RemoteProtocolError(f"{self._action}: {text}") from None
        if self._log:
            self._log.debug(
                "< %s after %.0f ms, %d bytes: %s",
                self._method.name,
                (time.monotonic() - self._started) * 1000,
                len(answer),
                describe(message),
            )
        if isinstance(message, cri_pb2.VersionResponse):
            name_and_version = f"{message.runtime_name} {message.runtime_version}"
            self._client.runtime = one_line(name_and_version)
        return message

    def _error_of(self, status: Status) -> PycrictlError:
        if self._log:
            said = f"{codes.name_of(status.code)} {one_line(status.details)}"
            self._log.debug("< %s failed: %s", self._method.name, said)
        deadline_s, elapsed_s = self._deadline_s, time.monotonic() - self._started
        # An earlier DEADLINE_EXCEEDED is due to a deadline of the runtime's own.
        is_ours = deadline_s is not None and elapsed_s >= 0.9 * deadline_s
        if is_ours and status.code == codes.CANCELLED and status.details:
            # The runtime enforces our deadline as well, and may cancel the call before we do.
            status = status._replace(code=codes.DEADLINE_EXCEEDED)
        return to_error(
            status,
            action=self._action,
            endpoint=self._client.endpoint,
            method=self._method.name,
            timeout_s=deadline_s if is_ours else None,
            timeout_flag=self._timeout_flag,
            runtime=self._client.runtime,
        )


class CriClient:
    """Calls to one runtime.

    Every failure is a ``PycrictlError`` whose message names what was being done (``action``, by
    default the call's name). A client must be closed, or used as a context manager; closing cancels
    running calls. ConnectError is raised if too few file descriptors are left.

    Attributes:
        path: absolute path of the socket.
        channel: the connection shared by all calls, opened by the first.
        runtime: name and version of the runtime after a ``Version`` call, else "".
    """

    def __init__(self, path: str, *, timeout_s: float) -> None:
        self.path = path
        self.endpoint = f"unix://{path}"
        self.timeout_s = timeout_s
        self.timeout_flag = "--timeout"
        self.runtime = ""
        self._is_closed = False
        self.channel = GrpcChannel(path, handshake_s=timeout_s)

    def branch(self) -> CriClient:
        """Return another client of the same runtime, which can be closed by itself."""
        branch = CriClient(self.path, timeout_s=self.timeout_s)
        branch.runtime = self.runtime
        return branch

    def call(self, name: str, request: Message, **terms: Unpack[Terms]) -> Any:
        """Make a unary call and wait for its answer; Ctrl-C cancels it.

        Raises:
            RuntimeFault: the runtime answered with an error status, or not in time.
            ConnectError: the connection could not be made.
            RemoteProtocolError: the answer is not the expected message, or has too many objects.
        """
        return self.start(name, request, **terms).answer()

    def is_crio(self) -> bool:
        """Return whether the runtime is CRI-O (CRI ``Version``); errors as for ``call``."""
        name: str = self.call("Version", cri_pb2.VersionRequest()).runtime_name
        return name.lower() == "cri-o"

    def start(self, name: str, request: Message, **terms: Unpack[Terms]) -> Call:
        """Begin a unary call; ``Cancelled`` is raised if the client has been closed."""
        if self._is_closed:
            raise Cancelled(f"{terms.get('action', name)}: cancelled", code="Canceled")
        return Call(self, name, request, terms)

    def stream(
        self, name: str, request: Message, **terms: Unpack[Terms]
    ) -> Generator[Any, None, None]:
        """Make a call that answers with a stream; errors as for ``call``.

        The call begins with the first iteration. It is cancelled when the iterator is closed or
        left by an exception.
        """
        yield from self.start(name, request, **terms).answers()

    def close(self) -> None:
        """Cancel all running calls, in any thread. Closing twice does nothing."""
        self._is_closed = True
        self.channel.close()

    def __enter__(self) -> CriClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CALLS_AT_ONCE: Final = 8
"""Enough calls to keep a runtime busy, and few enough not to block other clients."""


def for_each(
    client: CriClient,
    act: Callable[[CriClient, T], R],
    targets: Iterable[T],
    *,
    at_once: int = CALLS_AT_ONCE,
) -> Generator[R, None, None]:
    """Yield the result of an action on each target, in the order of the targets.

    Actions return their failures; an exception ends all of them. Two or more run in threads, with
    a client separate from the caller's. If the caller stops early, as at Ctrl-C, running calls are
    cancelled, and no others start.
    """
    targets = list(targets)
    if len(targets) < 2:  # no threads needed
        yield from (act(client, target) for target in targets)
        return
    branch = client.branch()
    pool = ThreadPoolExecutor(at_once)
    try:
        yield from pool.map(lambda target: act(branch, target), targets)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        branch.close()


def call_each(
    client: CriClient, name: str, requests: Iterable[tuple[str, Message]]
) -> Generator[Any, None, None]:
    """Yield the answer to each request, or the error in its place, in the order of the requests.

    A runtime may process calls one after the other. So the timeout of each call is extended by
    those of the calls running before it, as if they were made one by one. Each request comes with
    a description for error messages.
    """

    def call(client: CriClient, numbered: tuple[int, tuple[str, Message]]) -> Any:
        number, (action, request) = numbered
        timeout_s = client.timeout_s * min(number, CALLS_AT_ONCE)
        try:
            return client.call(name, request, timeout_s=timeout_s, action=action)
        except PycrictlError as error:
            return error

    return for_each(client, call, enumerate(requests, 1))
