"""Several images pulled at once, with one display for all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base import yamltree
from pycrictl.base.errors import ConfigError, Interrupted, PycrictlError, UsageError
from pycrictl.base.units import escape, plural
from pycrictl.base.yamltree import Node
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


_YAML: Final = re.compile(r"(?m)^\s*(?:-\s|---|[\w\"'./-]+\s*:(?:\s|$))|\A\s*(?:\{|\[\s*[\"{])")


def images_in(text: str) -> list[str]:
    """Return the images of a list or of manifests, in order, without duplicates.

    A list has one image per line, and ``#`` comments. YAML and JSON have them in a list, at
    ``images`` (as texts, or mappings with ``image`` or ``name``), or anywhere at ``image``, as the
    objects of Kubernetes and compose files do.

    Raises:
        ConfigError: the text or an entry cannot be read, or no image is in it.
    """
    by_line = _of_yaml(text) if _YAML.search(text) else _of_lines(text)
    for line, image in by_line:
        try:
            check_name(image)
        except UsageError as exc:
            raise ConfigError(f"line {line}: {exc.message}", hint=exc.hint) from None
    return list(dict.fromkeys(image for _, image in by_line))


def _of_lines(text: str) -> list[tuple[int, str]]:
    numbered = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(?:^|\s)#.*", "", line).split()
        if len(words) > 1:
            hint = "a list has one image per line; YAML and JSON have them at image or images"
            raise ConfigError(f"line {number}: it is more than the name of an image", hint=hint)
        numbered += [(number, word) for word in words]
    if not numbered:
        raise ConfigError("no image is in it")
    return numbered


def _of_yaml(text: str) -> list[tuple[int, str]]:
    try:
        roots = yamltree.parse_all(text)
    except yamltree.Problem as exc:
        raise ConfigError(f"line {exc.line}: {exc}") from None
    named = [image for root in roots for image in _named_in(root, "images")]
    if not named:
        members = [member for root in roots for member in root.members]
        kinds = [escape(member.node.text) for member in members if member.key == "kind"]
        raise ConfigError(
            f"it is a {kinds[0]}, which names no image" if kinds else "no image is in it"
        )
    return named


def _named_in(node: Node, key: str) -> Iterator[tuple[int, str]]:
    """Yield the images that the value of a key names, each with its line."""
    is_image, keys = key in ("image", "images"), {member.key for member in node.members}
    if is_image and node.type == "string":
        yield node.line, node.text
    elif is_image and node.type in ("null", "number", "boolean") and node.line:
        raise ConfigError(f"line {node.line}: {key} is not the name of an image")
    for item in node.items:
        yield from _named_in(item, key)
    # An entry of images may have only a name, and an image volume of a pod has a reference.
    alias = {"images": "name", "image": "reference"}.get(key) if "image" not in keys else None
    for member in node.members:
        yield from _named_in(member.node, "image" if member.key == alias else member.key)
