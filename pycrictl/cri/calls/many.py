"""The same to many objects: some at a time, results in order, and Ctrl-C ends all of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pycrictl.errors import PycrictlError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.client import CriClient

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 8
"""Enough to keep a runtime busy, and few enough not to keep others from it."""


def each(
    client: CriClient,
    act: Callable[[CriClient, T], R],
    targets: Iterable[T],
    *,
    at_once: int = AT_ONCE,
) -> Generator[R, None, None]:
    """Yield the result of an action on each target, in the order of the targets.

    An action returns its failure, so that it stops no other; what it raises ends all of them. It
    runs in a thread, with a client of its own. Leaving early, as Ctrl-C does, cancels the calls of
    those that run and begins no other.
    """
    targets = list(targets)
    if len(targets) < 2:  # nothing to do beside it
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

    A runtime may answer one after the other. So each call is given the time of those that were
    under way before it on top of its own, which is what they would have had one by one. A request
    comes with what is being done, for the message of an error.
    """

    def call(client: CriClient, numbered: tuple[int, tuple[str, Message]]) -> Any:
        number, (what, request) = numbered
        timeout_s = client.timeout_s * min(number, AT_ONCE)
        try:
            return client.call(name, request, timeout_s=timeout_s, what=what)
        except PycrictlError as error:
            return error

    return each(client, call, enumerate(requests, 1))
