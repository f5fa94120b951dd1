"""The fake runtime: both services of ``runtime.v1``, with answers that a test prepares."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from pycrictl.runtime.cri.calls.client import Method, method


@dataclass(frozen=True)
class Status:
    """An error as the answer, or at the end of a stream."""

    code: grpc.StatusCode
    details: str = ""


Answer = Message | bytes | Status | BaseException | None
"""The response to one request: a message, unchecked bytes, or an error. An exception becomes
Unknown with its text; None is an empty message."""

Maker = Callable[[Any, grpc.ServicerContext], Any]
"""Makes the answer when the request arrives."""


@dataclass(frozen=True)
class Call:
    """One request that was received.

    ``deadline_s`` is the time that was left on arrival, None without a deadline; ``is_known`` says
    whether the test had prepared or offered an answer for such a call.
    """

    method: str
    request: Any
    deadline_s: float | None
    metadata: dict[str, str | bytes]
    is_known: bool = True


@dataclass
class _Prepared:
    answers: deque[Any] = field(default_factory=deque)
    repeated: Any = None
    repeats: bool = False
    is_used: bool = False


class FakeServer:
    """The server as a test sees it.

    Attributes:
        path: of its socket.
        endpoint: the same with ``unix://``.
        calls: all requests so far, in order of arrival.
        lives_for: how many calls it answers before it stops, with all connections; None for any.
    """

    def __init__(self, path: str, stop: Callable[[], object]) -> None:
        self.path = path
        self._stop = stop
        self.endpoint = f"unix://{path}"
        self.calls: list[Call] = []
        self.lives_for: int | None = None
        self._prepared: dict[str, _Prepared] = {}
        self._offered: dict[str, Answer | Maker | Sequence[Any]] = {}
        self._lock = threading.Lock()

    def prepare(
        self, name: str, *answers: Answer | Maker | Sequence[Any], repeat: bool = False
    ) -> None:
        """Queue answers for a call; each is used once, in this order.

        A streaming call takes a sequence of answers and makers per request. With ``repeat`` the
        last answer serves all further requests, of which there must be at least one.
        """
        assert answers, "an answer is missing"
        assert method(name).is_stream == isinstance(answers[0], list | tuple), name
        prepared = self._prepared.setdefault(name, _Prepared())
        if repeat:
            prepared.repeated, prepared.repeats = answers[-1], True
            answers = answers[:-1]
        prepared.answers.extend(answers)

    def offer(self, name: str, answer: Answer | Maker | Sequence[Any]) -> None:
        """Set the answer for any number of requests, including none."""
        assert method(name).is_stream == isinstance(answer, list | tuple), name
        self._offered[name] = answer

    def withdraw(self, *names: str) -> None:
        """Remove the offered answers of these calls."""
        for name in names:
            del self._offered[name]

    def methods(self) -> list[str]:
        """The names of the calls so far."""
        return [call.method for call in self.calls]

    def unused(self) -> dict[str, int]:
        """Count the prepared answers per call that were never requested."""
        return {
            name: count
            for name, prepared in self._prepared.items()
            if (count := len(prepared.answers) + (prepared.repeats and not prepared.is_used))
        }

    def _take(self, name: str) -> Any:
        """Return the next answer, or the status of a runtime that does not implement the call."""
        prepared = self._prepared.get(name)
        if prepared is not None and prepared.answers:
            return prepared.answers.popleft()
        if prepared is not None and prepared.repeats:
            prepared.is_used = True
            return prepared.repeated
        if name in self._offered:
            return self._offered[name]
        details = f"unknown method {name} for service {method(name).path.split('/')[1]}"
        return Status(grpc.StatusCode.UNIMPLEMENTED, details)

    def _arrived(self, called: Method, request: Any, context: grpc.ServicerContext) -> Any:
        remaining_s = context.time_remaining()
        metadata = dict(context.invocation_metadata())
        call = Call(
            called.name,
            request,
            remaining_s if remaining_s is not None and remaining_s < 1e8 else None,
            metadata,
            is_known=called.name in self._offered or called.name in self._prepared,
        )
        with self._lock:
            self.calls.append(call)
            if self.lives_for is not None and len(self.calls) > self.lives_for:
                self._stop()
                return Status(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return self._take(called.name)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        try:
            called = method(details.method.rpartition("/")[2])
        except KeyError:
            return None
        if called.path != details.method:
            return None

        def unary(request: Any, context: grpc.ServicerContext) -> bytes:
            return _encoded(
                called, self._server._arrived(called, request, context), request, context
            )

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            answers = self._server._arrived(called, request, context)
            for answer in answers if isinstance(answers, list | tuple) else [answers]:
                yield _encoded(called, answer, request, context)

        if called.is_stream:
            return grpc.unary_stream_rpc_method_handler(
                stream, request_deserializer=called.request_type.FromString
            )
        return grpc.unary_unary_rpc_method_handler(
            unary, request_deserializer=called.request_type.FromString
        )


def _encoded(called: Method, answer: Any, request: Any, context: grpc.ServicerContext) -> bytes:
    if callable(answer):
        answer = answer(request, context)
    if isinstance(answer, Status):
        _abort(context, answer)
    if isinstance(answer, BaseException):
        _abort(context, Status(grpc.StatusCode.UNKNOWN, str(answer)))
    if answer is None:
        return b""
    if isinstance(answer, bytes):
        return answer
    assert isinstance(answer, called.response_type), f"{called.name} does not answer {type(answer)}"
    return answer.SerializeToString()


def _abort(context: grpc.ServicerContext, status: Status) -> NoReturn:
    context.abort(status.code, status.details)
    raise AssertionError("abort returned")


def hang(limit_s: float = 10) -> Maker:
    """Return an answer that is not sent before the client has given up."""

    def wait(request: Any, context: grpc.ServicerContext) -> Status:
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait(limit_s)
        return Status(grpc.StatusCode.CANCELLED, "nobody waits any more")

    return wait


@contextmanager
def serve(
    path: str | None = None, *more: grpc.GenericRpcHandler, threads: int = 8
) -> Iterator[FakeServer]:
    """Run the server on a socket of its own, or at ``path``, with ``more`` handlers.

    Leaving the block fails if a prepared answer was never requested.
    """
    # Not pytest's tmp_path: a socket's path is limited to 107 bytes.
    folder = "" if path else tempfile.mkdtemp(prefix="fakecri-")
    fake = FakeServer(path or str(Path(folder, "s")), lambda: server.stop(0))
    server = grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="fakecri"),
        handlers=[_Handler(fake), *more],
        options=(("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)),
    )
    try:
        server.add_insecure_port(f"unix:{fake.path}")
        server.start()
        yield fake
        unused = fake.unused()
        assert not unused, f"prepared but never asked for: {unused}"
    finally:
        server.stop(None).wait()
        if folder:
            shutil.rmtree(folder)
