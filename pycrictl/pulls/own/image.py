"""Pulling images, one or several at once, and showing the pulls while they run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    Cancelled,
    ConfigError,
    Interrupted,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    Unimplemented,
    UsageError,
)
from pycrictl.base.threads import call_in_thread
from pycrictl.base.units import plural
from pycrictl.pulls.own.slots import pull_slot
from pycrictl.pulls.reference import Match, flaw, match, may_be
from pycrictl.pulls.registries.credentials import credentials_of
from pycrictl.pulls.sources.content_watcher import ContentWatcher
from pycrictl.pulls.sources.crio.watcher import CrioWatcher
from pycrictl.pulls.sources.endings import Endings, Pace, Sink
from pycrictl.pulls.sources.node_watch import open_stream, open_watcher
from pycrictl.pulls.sources.pull_names import Expected
from pycrictl.pulls.sources.stream_watch import watch_stream
from pycrictl.pulls.state import PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.redact import quote_reference, redact_text


class ClosableSink(Sink, Protocol):
    def close(self) -> None: ...


SHOWN_AFTER_S: Final = 0.3
"""Pulls that end sooner, such as those of images already present, are not shown."""


class Show(NamedTuple):
    """How to show pulls that last for at least ``SHOWN_AFTER_S``.

    Attributes:
        interval_s: the pause between two polls.
    """

    open_sink: Callable[[], ClosableSink]
    interval_s: float


class SharedLimit(NamedTuple):
    """A limit on parallel pulls, shared by all pycrictl processes on the node.

    ``on_wait`` is called before a pull waits for a slot.
    """

    limit: int
    directory: Path
    on_wait: Callable[[], None]


def check_name(image: str) -> None:
    """Raise UsageError for a name that every runtime refuses; it says which part is wrong."""
    if (wrong := flaw(redact_text(image))) is not None:
        message = f"{quote_reference(image)} is not the name of an image: {wrong.text}"
        raise UsageError(message, hint=wrong.advice)


def pull(
    client: CriClient,
    request: cri_pb2.PullImageRequest,
    *,
    timeout_s: float | None,
    limit: SharedLimit | None = None,
) -> str:
    """Pull one image (CRI ``PullImage``) and return the runtime's reference to it.

    ``timeout_s`` covers both the wait for a slot and the pull. With a limit, an image that is
    already present is not pulled and takes no slot.
    """
    reference = request.image.image
    began_at = time.monotonic()
    with ExitStack() as slot:
        if limit is not None:
            with suppress(NotFound):  # some runtimes raise it for an absent image, against the CRI
                answer = client.call("ImageStatus", cri_pb2.ImageStatusRequest(image=request.image))
                if answer.image.id:
                    return str(answer.image.id)
            taken = pull_slot(
                limit.limit,
                image=redact_text(reference),
                directory=limit.directory,
                timeout_s=timeout_s,
                on_wait=limit.on_wait,
            )
            slot.enter_context(taken)
            if timeout_s is not None:
                timeout_s = max(timeout_s - (time.monotonic() - began_at), 0.001)
        action = f"pulling {quote_reference(reference)}"
        answer = client.call(
            "PullImage", request, timeout_s=timeout_s, action=action, timeout_flag="--pull-timeout"
        )
    if not answer.image_ref:
        raise RemoteProtocolError(
            f"the runtime pulled {quote_reference(reference)} but named no image"
        )
    return str(answer.image_ref)


class _Line:
    """The line of a proxy in front of the runtime, from its own stream (a ``Sink``)."""

    def __init__(self, client: CriClient) -> None:
        self.pulls: Sequence[PullState] = ()
        self.is_closed = False
        threading.Thread(target=self._run, args=(client,), name="line", daemon=True).start()

    def _run(self, client: CriClient) -> None:
        # It fails if there is no proxy, or once this line is closed.
        with suppress(PycrictlError), client.branch() as own:
            open_url = partial(open_stream, own)
            watch_stream(open_url, Tracker(), self, timeout_s=own.timeout_s, pace=Pace(1.0))

    def show(self, view: View) -> None:
        if self.is_closed:
            raise Cancelled("the pull has begun")
        self.pulls = [*view.pulls.values()]

    def note(self, text: str) -> None:
        """Do nothing: the pull itself meets the same obstacle."""

    def end(self, images: Collection[str]) -> None:
        """Do nothing: only a watch with ``follow`` calls this."""


class PullDisplay:
    """Shows the pulls of some images; a failure to do so is noted once and never ends a pull."""

    def __init__(
        self, client: CriClient, images: Sequence[str], show: Show, sink: ClosableSink
    ) -> None:
        self._client = client
        self._sink = sink
        self._tracker = Tracker(images)
        self._endings = Endings(self._tracker, sink)
        self._watcher: ContentWatcher | CrioWatcher | None = None
        self._expected: dict[str, Expected] = {}
        self._begun: set[str] = set()
        self._line: _Line | None = None
        try:
            self._watcher = open_watcher(client)
        except Unimplemented:
            sink.note("this runtime does not show the progress of a pull")
        except PycrictlError as exc:
            hint = f" ({exc.hint})" if exc.hint else ""
            sink.note(f"the progress cannot be shown: {exc.message}{hint}")

    def expect(self, request: cri_pb2.PullImageRequest, since_s: float) -> None:
        """Show a pull that began at ``since_s`` (wall-clock time)."""
        reference = request.image.image
        if reference not in self._expected:
            expected = Expected(reference, since_s, credentials_of(request.auth))
            self._expected[reference] = expected
            if self._watcher is not None:
                self._watcher.expect(expected)

    def poll(self, failed: Collection[str] = ()) -> None:
        """Poll once; show ``failed`` pulls without a cause, which is reported later."""
        for image in failed:
            self._forget(image)
        if self._watcher is None:
            return
        try:
            now = time.monotonic()
            result = self._watcher.poll(now)
            result.apply_to(self._tracker, now)
        except PycrictlError as exc:
            self._watcher = None
            self._sink.note(f"the progress can no longer be shown: {exc.message}")
            return
        for image in failed:
            for name in self._names(image):
                self._tracker.clear_error(name)
        # Never removed: a lease that stays empty for long no longer counts as a pull.
        self._begun |= {pull.image for pull in self._tracker.wanted(result.active)}
        self._show()

    def end(self, image: str) -> None:
        self._forget(image)
        if names := self._names(image):
            self._show()
            self._endings.end(names, time.monotonic())

    def _forget(self, image: str) -> None:
        expected = self._expected.pop(image, None)
        if expected is not None and self._watcher is not None:
            self._watcher.forget(expected)

    def _names(self, image: str) -> list[str]:
        return [name for name in self._tracker.pulls if may_be(image, name)]

    def _show(self) -> None:
        view = self._tracker.view(time.monotonic(), time.time())
        if not view.pulls:
            self._line = self._line or _Line(self._client)
            view = replace(view, awaited=tuple(starmap(self._awaited, self._expected.items())))
        elif self._line is not None:
            self._line.is_closed = True
        self._sink.show(view)

    def _awaited(self, image: str, expected: Expected) -> PullState:
        """Return an expected pull, which is shown until a source reports any."""
        shown: dict[str, Any] = {"image": redact_text(image), "began_s": expected.since_s}
        for pull in self._line.pulls if self._line is not None else ():
            if pull.place and match(image, pull) is Match.YES:
                # Another pull without a name may have been taken for this one.
                return replace(pull, layers=(), is_begun=False, **shown)
        is_begun = any(not name or may_be(image, name) for name in self._begun)
        return PullState(is_begun=is_begun, **shown)


# Pulls with their display


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

    If a pull fails, the others go on; Ctrl-C cancels those that have not ended. All pulls share one
    display; if there are several images, it shows how each one ended.
    """
    todo = list(enumerate(requests))[::-1]
    running: dict[Future[PullOutcome], int] = {}
    began_s: dict[int, float] = {}
    outcomes: dict[int, PullOutcome] = {}
    branch = client.branch()
    began_at, pause_s = time.monotonic(), SHOWN_AFTER_S
    with ExitStack() as stack:
        stack.callback(branch.close)  # cancels running calls
        display: PullDisplay | None = None
        try:
            while running or todo:
                while todo and len(running) < parallel:
                    place, request = todo.pop()
                    began_s[place] = time.time()
                    running[call_in_thread(partial(_outcome_of, branch, request, pull_one))] = place
                is_late = time.monotonic() - began_at >= SHOWN_AFTER_S
                if show is not None and display is None and is_late:
                    sink = stack.enter_context(closing(show.open_sink()))
                    images = [item.image.image for item in requests]
                    display = PullDisplay(client, images, show, sink)
                    pause_s = 0.0
                done, _ = wait(running, timeout=pause_s, return_when=FIRST_COMPLETED)
                pause_s = show.interval_s if show is not None and display else SHOWN_AFTER_S
                if display is not None:
                    for place in running.values():
                        display.expect(requests[place], began_s[place])
                    ended = [future.result() for future in done]
                    display.poll([item.image for item in ended if item.error is not None])
                for future in done:
                    outcome = outcomes[running.pop(future)] = future.result()
                    if display is not None and len(requests) > 1:
                        display.end(outcome.image)
        except KeyboardInterrupt:
            pulls = plural(len(requests) - len(outcomes), "pull")
            if len(requests) == 1:
                pulls = f"the pull of {quote_reference(requests[0].image.image)}"
            raise Interrupted(f"cancelled {pulls}") from None
    return [outcomes[place] for place in range(len(requests))]


def _outcome_of(
    client: CriClient, request: cri_pb2.PullImageRequest, pull_one: PullOne
) -> PullOutcome:
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
        ConfigError: a line is not the name of an image, or the list has none.
    """
    images: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(?:^|\s)#.*", "", line).split()
        if len(words) > 1:
            hint = "a list has one image per line"
            raise ConfigError(f"line {number}: it has more than the name of an image", hint=hint)
        for image in words:
            try:
                check_name(image)
            except UsageError as exc:
                raise ConfigError(f"line {number}: {exc.message}", hint=exc.hint) from None
            images[image] = None
    if not images:
        raise ConfigError("no image is in it")
    return list(images)
