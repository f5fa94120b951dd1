"""Several images pulled at once, with one display for all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

from pycrictl import yamltree
from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import ConfigError, Interrupted, PycrictlError
from pycrictl.pull.image import FIRST_LOOK_S, PullDisplay, Show
from pycrictl.units import plural

PullOne = Callable[["CriClient", cri_pb2.PullImageRequest], str]
"""Pulls an image without showing it, and returns the runtime's reference to it."""

NOT_TRIED: Final = "not tried"


class PullOutcome(NamedTuple):
    """How a pull ended: the runtime's reference, or why it failed; neither if it was not tried."""

    image: str
    reference: str = ""
    error: PycrictlError | None = None
    took_s: float = 0.0

    @property
    def words(self) -> str:
        if self.error is not None:
            return f"failed: {self.error.message.partition(': ')[2] or self.error.message}"
        return "up to date" if self.reference else NOT_TRIED


def pull_many(
    client: CriClient,
    requests: Sequence[cri_pb2.PullImageRequest],
    pull_one: PullOne,
    *,
    parallel: int,
    keeps_going: bool,
    show: Show | None,
) -> list[PullOutcome]:
    """Pull images, ``parallel`` at once, and return their outcomes in the same order.

    With ``keeps_going``, pulls are also started after a failure. Ctrl-C cancels the running ones.
    """
    todo = list(enumerate(requests))[::-1]
    running: dict[Future[PullOutcome], int] = {}
    began_s: dict[int, float] = {}
    found: dict[int, PullOutcome] = {}
    branch = client.branch()
    pool = ThreadPoolExecutor(parallel)
    has_failed = False
    began_at = time.monotonic()
    with ExitStack() as stack:
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        stack.callback(branch.close)  # cancels running calls
        display: PullDisplay | None = None
        try:
            while running or (todo and (keeps_going or not has_failed)):
                while todo and len(running) < parallel and (keeps_going or not has_failed):
                    place, request = todo.pop()
                    began_s[place] = time.time()
                    running[pool.submit(_pull, branch, request, pull_one)] = place
                is_late = time.monotonic() - began_at >= FIRST_LOOK_S
                if show is not None and display is None and is_late:
                    sink = stack.enter_context(closing(show.open_sink()))
                    images = [one.image.image for one in requests]
                    display = PullDisplay(client, images, show, sink)
                pause_s = show.interval_s if show is not None and display else FIRST_LOOK_S
                done, _ = wait(running, timeout=pause_s, return_when=FIRST_COMPLETED)
                if display is not None:
                    for place in running.values():
                        display.expect(requests[place], began_s[place])
                    ended = [future.result() for future in done]
                    display.look([one.image for one in ended if one.error is not None])
                for future in done:
                    outcome = found[running.pop(future)] = future.result()
                    has_failed = has_failed or outcome.error is not None
                    if display is not None:
                        display.end(outcome.image)
        except KeyboardInterrupt:
            raise Interrupted(f"cancelled {plural(len(running), 'pull')}") from None
    return [found.get(n, PullOutcome(one.image.image)) for n, one in enumerate(requests)]


def _pull(client: CriClient, request: cri_pb2.PullImageRequest, pull_one: PullOne) -> PullOutcome:
    began_at = time.monotonic()
    reference, failure = "", None
    try:
        reference = pull_one(client, request)
    except PycrictlError as error:
        failure = error
    return PullOutcome(request.image.image, reference, failure, time.monotonic() - began_at)


MAX_IMAGES: Final = 10_000

_YAML: Final = r"(?m)^images\s*:(\s|$)"


def images_in(text: str) -> list[str]:
    """Return the images of a list, in order, without duplicates.

    The list has one image per line, and ``#`` comments; or it is YAML, where ``images`` lists
    strings, or mappings with ``name`` or ``image``.
    """
    if re.search(_YAML, text):
        found = list(_of_yaml(text))
    else:
        lines = [re.sub(r"(?:^|\s)#.*", "", line).strip() for line in text.splitlines()]
        for number, line in enumerate(lines, 1):
            if len(line.split()) > 1:
                raise ConfigError(f"line {number}: more than one word")
        found = [line for line in lines if line]
    if not found:
        raise ConfigError("no image is in it")
    if len(found) > MAX_IMAGES:
        raise ConfigError(f"more than {MAX_IMAGES} images are in it")
    return list(dict.fromkeys(found))


def _of_yaml(text: str) -> list[str]:
    try:
        document = yamltree.parse(text).data
    except yamltree.Problem as exc:
        raise ConfigError(f"line {exc.line}: {exc}") from None
    listed = document.get("images") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ConfigError("images is not a list")
    found = []
    for number, one in enumerate(listed, 1):
        name = (one.get("name") or one.get("image")) if isinstance(one, dict) else one
        if not isinstance(name, str) or not name.strip() or len(name.split()) > 1:
            raise ConfigError(f"images, entry {number}: it is not an image")
        found.append(name.strip())
    return found
