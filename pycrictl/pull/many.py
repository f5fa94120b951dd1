"""Several images pulled at once, with one display for all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl import yamltree
from pycrictl._proto import cri_pb2
from pycrictl.errors import ConfigError, Interrupted, PycrictlError
from pycrictl.progress.endings import Endings
from pycrictl.progress.pull_names import Expected
from pycrictl.progress.reference import is_same_image
from pycrictl.progress.registry.requests import credentials_of
from pycrictl.progress.sources import ImageTracker, open_watcher
from pycrictl.pull.image import FIRST_LOOK_S, ClosableSink, Show
from pycrictl.units import plural

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

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
    """Pull images, so many at once, and return how each ended, in their order.

    Args:
        client: of the image service.
        requests: of the images.
        pull_one: pulls one; called in threads.
        parallel: how many at once.
        keeps_going: whether others are begun after a failure.
        show: one display for all; None to show nothing.

    Raises:
        Interrupted: Ctrl-C; the pulls that ran were cancelled.
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
        stack.callback(branch.close)  # which cancels what still runs
        display: _Display | None = None
        try:
            while running or (todo and (keeps_going or not has_failed)):
                while todo and len(running) < parallel and (keeps_going or not has_failed):
                    place, request = todo.pop()
                    began_s[place] = time.time()
                    running[pool.submit(_pull, branch, request, pull_one)] = place
                is_late = time.monotonic() - began_at >= FIRST_LOOK_S
                if show is not None and display is None and is_late:
                    sink = stack.enter_context(closing(show.open_sink()))
                    display = _Display(client, [one.image.image for one in requests], sink)
                pause_s = show.interval_s if show is not None and display else FIRST_LOOK_S
                done, _ = wait(running, timeout=pause_s, return_when=FIRST_COMPLETED)
                if display is not None:
                    for place in running.values():
                        display.expect(requests[place], began_s[place])
                    display.look()
                for future in done:
                    outcome = found[running.pop(future)] = future.result()
                    has_failed = has_failed or outcome.error is not None
                    if display is not None:
                        display.end(outcome)
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


class _Display:
    """Shows the pulls of some images. Trouble with that is noted once, and never ends a pull."""

    def __init__(self, client: CriClient, images: Sequence[str], sink: ClosableSink) -> None:
        self._images = images
        self._sink = sink
        self._tracker = ImageTracker("", self._is_ours)
        self._endings = Endings(self._tracker, sink)
        self._poll: Callable[..., object] | None = None
        self._expected: set[str] = set()
        try:
            self._watcher, _ = open_watcher(client)
        except PycrictlError as exc:
            sink.note(f"the progress cannot be shown: {exc.message}")
        else:
            self._poll = partial(self._watcher.poll, self._tracker)

    def expect(self, request: cri_pb2.PullImageRequest, since_s: float) -> None:
        reference = request.image.image
        if self._poll is not None and reference not in self._expected:
            self._expected.add(reference)
            self._watcher.expect(Expected(reference, since_s, credentials_of(request.auth)))

    def look(self) -> None:
        if self._poll is None:
            return
        now = time.monotonic()
        try:
            self._poll(now)
        except PycrictlError as exc:
            self._poll = None
            self._sink.note(f"the progress can no longer be shown: {exc.message}")
            return
        self._sink.show(self._tracker.view(now))

    def end(self, outcome: PullOutcome) -> None:
        now = time.monotonic()
        names = dict.fromkeys(one.image for one in self._tracker.view(now).items)
        ended = [name for name in names if is_same_image(outcome.image, name)]
        for name in ended:
            if outcome.error is not None:
                self._tracker.replace_error(name, "")
        if ended:
            self._sink.show(self._tracker.view(now))
            self._endings.end(ended, now)

    def _is_ours(self, name: str) -> bool:
        return any(is_same_image(image, name) for image in self._images)


MAX_IMAGES: Final = 10_000

_YAML: Final = r"(?m)^images\s*:"


def images_in(text: str) -> list[str]:
    """Return the images of a list, each once, in their order.

    A line may end in a comment (``#``). In YAML an image is a text, or a mapping with ``name`` or
    ``image``.

    Raises:
        ConfigError: something in it is no image, or there is none.
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
            raise ConfigError(f"images, entry {number}: it is no image")
        found.append(name.strip())
    return found
