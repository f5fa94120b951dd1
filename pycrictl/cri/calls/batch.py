"""The same call about many objects: several in flight over one connection, answers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from pycrictl.errors import PycrictlError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.calls.pending import PendingCall

IN_FLIGHT: Final = 16
"""Enough to keep a runtime busy, and few enough not to keep others from it."""


def call_each(
    client: CriClient, name: str, requests: Iterable[tuple[str, Message]]
) -> Generator[Any, None, None]:
    """Yields the answer to each request, or the error in its place, in the order of the requests.

    A runtime may answer one after the other. So each call is given the time of those that were
    under way before it on top of its own, which is what they would have had one by one.

    Leaving early, as Ctrl-C does, cancels what is in flight and starts no further call.

    Args:
        client: a client of the service.
        name: the call, one without a deadline rule of its own.
        requests: what is being done with it, for the message of an error, and the request.
    """
    remaining = iter(requests)
    first = list(islice(remaining, 2))
    if len(first) == 1:
        ((what, request),) = first
        yield _outcome(partial(client.call, name, request, what=what))
        return
    pending: deque[PendingCall] = deque()
    try:
        for what, request in chain(first, remaining):
            timeout_s = client.timeout_s * (len(pending) + 1)
            pending.append(client.start(name, request, timeout_s=timeout_s, what=what))
            if len(pending) == IN_FLIGHT:
                yield _outcome(pending.popleft().result)
        while pending:
            yield _outcome(pending.popleft().result)
    finally:
        for call in pending:
            call.cancel()


def _outcome(result: Callable[[], Any]) -> Any:
    try:
        return result()
    except PycrictlError as error:
        return error
