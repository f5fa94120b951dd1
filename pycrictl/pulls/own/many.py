"""Several images pulled at once, with one display for all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConfigError, Interrupted, PycrictlError, UsageError
from pycrictl.base.units import plural
from pycrictl.pulls.own.image import SHOWN_AFTER_S, PullDisplay, Show, check_name
from pycrictl.runtime.cri.calls.client import CriClient

PullOne = Callable[["CriClient", cri_pb2.PullImageRequest], str]
"""Pulls an image without showing it, and returns the runtime's reference to it."""


class PullOutcome(NamedTuple):
    """How a pull ended: the runtime's reference, or why it failed."""

    image: str
    reference: str = ""
    error: PycrictlError | None = None
    took_s: float = 0.0

    @property
    def words(self) -> str:
        if self.error is not None:
            return f"failed: {self.error.message.partition(': ')[2] or self.error.message}"
        return "up to date"


def pull_many(
    client: CriClient,
    requests: Sequence[cri_pb2.PullImageRequest],
    pull_one: PullOne,
    *,
    parallel: int,
    show: Show | None,
) -> list[PullOutcome]:
    """Pull images, ``parallel`` at once, and return their outcomes in the same order.

    A failure does not stop the others; Ctrl-C cancels the running ones.
    """
    todo = list(enumerate(requests))[::-1]
    running: dict[Future[PullOutcome], int] = {}
    began_s: dict[int, float] = {}
    outcomes: dict[int, PullOutcome] = {}
    branch = client.branch()
    pool = ThreadPoolExecutor(parallel)
    began_at = time.monotonic()
    with ExitStack() as stack:
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        stack.callback(branch.close)  # cancels running calls
        display: PullDisplay | None = None
        try:
            while running or todo:
                while todo and len(running) < parallel:
                    place, request = todo.pop()
                    began_s[place] = time.time()
                    running[pool.submit(_pull, branch, request, pull_one)] = place
                is_late = time.monotonic() - began_at >= SHOWN_AFTER_S
                if show is not None and display is None and is_late:
                    sink = stack.enter_context(closing(show.open_sink()))
                    images = [item.image.image for item in requests]
                    display = PullDisplay(client, images, show, sink)
                pause_s = show.interval_s if show is not None and display else SHOWN_AFTER_S
                done, _ = wait(running, timeout=pause_s, return_when=FIRST_COMPLETED)
                if display is not None:
                    for place in running.values():
                        display.expect(requests[place], began_s[place])
                    ended = [future.result() for future in done]
                    display.poll([item.image for item in ended if item.error is not None])
                for future in done:
                    outcome = outcomes[running.pop(future)] = future.result()
                    if display is not None:
                        display.end(outcome.image)
        except KeyboardInterrupt:
            raise Interrupted(f"cancelled {plural(len(running), 'pull')}") from None
    return [outcomes[place] for place in range(len(requests))]


def _pull(client: CriClient, request: cri_pb2.PullImageRequest, pull_one: PullOne) -> PullOutcome:
    began_at = time.monotonic()
    reference, failure = "", None
    try:
        reference = pull_one(client, request)
    except PycrictlError as error:
        failure = error
    return PullOutcome(request.image.image, reference, failure, time.monotonic() - began_at)


def images_in(text: str) -> list[str]:
    """Return the images of a list, in order, without duplicates.

    A list has one image per line, and ``#`` comments.

    Raises:
        ConfigError: a line is not the name of an image, or no image is in it.
    """
    images: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(?:^|\s)#.*", "", line).split()
        if len(words) > 1:
            hint = "a list has one image per line"
            raise ConfigError(f"line {number}: it is more than the name of an image", hint=hint)
        for image in words:
            try:
                check_name(image)
            except UsageError as exc:
                raise ConfigError(f"line {number}: {exc.message}", hint=exc.hint) from None
            images[image] = None
    if not images:
        raise ConfigError("no image is in it")
    return list(images)
