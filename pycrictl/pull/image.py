"""Pulling an image, and showing the pull while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.redact import quote_reference, redact_text
from pycrictl.errors import (
    Interrupted,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    Unimplemented,
)
from pycrictl.progress.endings import Sink
from pycrictl.progress.pull_names import Expected
from pycrictl.progress.registry.requests import credentials_of
from pycrictl.progress.sources import ImageTracker, awaited, open_watcher
from pycrictl.pull.slots import Retry, pull_slot
from pycrictl.pulls.model import Awaited

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import Call, CriClient
    from pycrictl.progress.content_watcher import ContentWatcher
    from pycrictl.progress.crio.watcher import CrioWatcher


class ClosableSink(Sink, Protocol):
    def close(self) -> None: ...


FIRST_LOOK_S: Final = 0.3
"""A pull that ends sooner, such as that of a present image, is not shown."""


class Show(NamedTuple):
    """How pulls are shown that take long enough, of containerd and CRI-O.

    Attributes:
        open_sink: opens the display.
        interval_s: pause between two looks.
        wants_manifests: whether the registry may be asked for what CRI-O does not show.
    """

    open_sink: Callable[[], ClosableSink]
    interval_s: float
    wants_manifests: bool = True


class SharedLimit(NamedTuple):
    """The limit of parallel pulls that all processes of the node keep together.

    Attributes:
        limit: the most images pulled at once.
        directory: where the slots are shared.
        retry: how to look again when none is free; None waits in line.
        on_wait: called with the place in line when it changes, from 1; 0 if there is no line.
    """

    limit: int
    directory: Path
    retry: Retry | None
    on_wait: Callable[[int], None]


def pull(
    client: CriClient,
    request: cri_pb2.PullImageRequest,
    *,
    timeout_s: float | None,
    show: Show | None = None,
    limit: SharedLimit | None = None,
) -> str:
    """Pull one image (CRI ``PullImage``) and return the runtime's reference to it.

    Args:
        client: of the image service.
        request: is sent as it is.
        timeout_s: limit of the waiting for a slot and the pull together, None for none.
        show: None to show nothing.
        limit: with one, an image that the runtime has is not pulled and takes no slot.

    Raises:
        RuntimeFault: the pull failed.
        DeadlineExceeded: it took too long, or no slot became free in time.
        Exhausted: no slot was free at any retry.
        Interrupted: Ctrl-C; the pull was cancelled.
    """
    if limit is None:
        return _pull(client, request, timeout_s, show)
    if image_id := _present(client, request.image):
        return image_id
    began_at = time.monotonic()
    reference = request.image.image
    try:
        with pull_slot(
            limit.limit,
            image=redact_text(reference),
            directory=limit.directory,
            timeout_s=timeout_s,
            retry=limit.retry,
            on_wait=limit.on_wait,
        ):
            if timeout_s is not None:
                timeout_s = max(timeout_s - (time.monotonic() - began_at), 0.001)
            return _pull(client, request, timeout_s, show)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped waiting to pull {quote_reference(reference)}") from None


def _present(client: CriClient, image: cri_pb2.ImageSpec) -> str:
    try:
        answer = client.call("ImageStatus", cri_pb2.ImageStatusRequest(image=image))
    except NotFound:  # the CRI answers without an image, some runtimes with this
        return ""
    image_id: str = answer.image.id
    return image_id


def _pull(
    client: CriClient,
    request: cri_pb2.PullImageRequest,
    timeout_s: float | None,
    show: Show | None,
) -> str:
    reference = request.image.image
    since_s = time.time()
    try:
        call = client.start(
            "PullImage",
            request,
            timeout_s=timeout_s,
            what=f"pulling {quote_reference(reference)}",
            timeout_flag="--pull-timeout",
        )
        try:
            if show is not None and not call.wait(FIRST_LOOK_S):
                with closing(show.open_sink()) as sink:
                    _look_until_done(client, call, request, since_s, sink, show)
            image_ref: str = call.answer().image_ref
        finally:
            call.cancel()  # does nothing to a call that has ended
    # It may come while the call begins, too: the client cancels that when it is closed.
    except KeyboardInterrupt:
        raise Interrupted(f"cancelled the pull of {quote_reference(reference)}") from None
    if not image_ref:
        raise RemoteProtocolError(
            f"the runtime pulled {quote_reference(reference)} but named no image"
        )
    return image_ref


def _look_until_done(
    client: CriClient,
    call: Call,
    request: cri_pb2.PullImageRequest,
    since_s: float,
    sink: Sink,
    show: Show,
) -> None:
    """Show the pull until it has ended. Trouble with that is noted and never ends the pull."""
    try:
        watcher, _ = open_watcher(client, wants_manifests=show.wants_manifests)
    except Unimplemented:
        sink.note("this runtime does not show the progress of a pull")
        return
    except PycrictlError as exc:
        hint = f" ({exc.hint})" if exc.hint else ""
        sink.note(f"the progress cannot be shown: {exc.message}{hint}")
        return
    reference = request.image.image
    expected = Expected(reference, since_s, credentials_of(request.auth))
    watcher.expect(expected)
    looks = _Looks(watcher, reference, since_s, sink)
    try:
        looks.take()
        while not call.wait(show.interval_s):
            looks.take()
        looks.take()
        if call.has_failed:
            looks.take(is_failed=True)  # what failed after its last byte is known from then on
    except PycrictlError as exc:
        sink.note(f"the progress can no longer be shown: {exc.message}")
    finally:
        watcher.forget(expected)


class _Looks:
    def __init__(
        self, watcher: ContentWatcher | CrioWatcher, reference: str, since_s: float, sink: Sink
    ) -> None:
        self._watcher = watcher
        self._reference = reference
        self._since_s = since_s
        self._sink = sink
        self._tracker = ImageTracker(reference)
        self._is_begun = False

    def take(self, *, is_failed: bool = False) -> None:
        """Look, and show it.

        Args:
            is_failed: the pull has failed; the runtime's error says why, and is shown later.
        """
        now = time.monotonic()
        result = self._watcher.poll(self._tracker, now)
        if is_failed:
            for image in dict.fromkeys(one.image for one in self._tracker.view(now).items):
                self._tracker.replace_error(image, "")
        view = self._tracker.view(now)
        if not view.items:
            # For good: a lease that holds nothing for long no longer counts as a pull.
            self._is_begun = self._is_begun or bool(awaited(result, self._tracker))
            waited_s = max(time.time() - self._since_s, 0.0)
            view = replace(
                view, awaited=(Awaited(redact_text(self._reference), self._is_begun, waited_s),)
            )
        self._sink.show(view)
