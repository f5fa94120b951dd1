"""Whether a pull is that of an image: yes, no, or maybe. Pure, and decided here alone.

A pull may be named by its runtime: containerd names a running one without the registry's port and
the tag, by the manifest's digest alone. Its source then looks for the images that it may be for,
its candidates. What the kubelet says counts as well: an image whose pull has failed since a running
pull began is not the image of that pull.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from pycrictl.pulls.reference import canonical, is_same_repository, parse, tag_of
from pycrictl.pulls.state import PullState


class Match(Enum):
    """Whether a pull is that of an image; ``MAYBE``: it is the pull of one of several."""

    NO = auto()
    MAYBE = auto()
    YES = auto()


def match(wanted: str, pull: PullState, *, failed_s: float = 0.0) -> Match:
    """Return whether a pull is that of the image ``wanted``, a reference.

    Args:
        failed_s: when the kubelet said that its pull of the image had failed (Unix time), 0 if it
            does not say so.
    """
    found = _by_names(wanted, pull)
    is_older = pull.is_running and 0.0 < pull.began_s < failed_s
    return Match.NO if found is Match.MAYBE and is_older else found


def may_be(wanted: str, name: str) -> bool:
    """Return whether a pull of this name may be that of the image ``wanted``."""
    return match(wanted, PullState(image=name)) is not Match.NO


def is_among(wanted: str, names: Iterable[str]) -> bool:
    """Return whether a pull of one of these names may be that of the image ``wanted``."""
    return any(may_be(wanted, name) for name in names)


def _by_names(wanted: str, pull: PullState) -> Match:
    if wanted == pull.image or canonical(wanted) == canonical(pull.image):
        return Match.YES
    want, have = parse(wanted), parse(pull.image)
    if not is_same_repository(want, have):
        return Match.NO
    if pull.candidates:
        if canonical(wanted) not in map(canonical, pull.candidates):
            return Match.NO
        return Match.MAYBE if len(pull.candidates) > 1 else Match.YES
    digest = have.digest or pull.digest
    if want.digest and digest:
        is_same = digest.startswith(want.digest) or want.digest.startswith(digest)
        return Match.YES if is_same else Match.NO
    if have.tag or not have.digest:
        if tag_of(want) == tag_of(have) and not want.digest:
            return Match.YES
        return Match.MAYBE if want.digest else Match.NO
    return Match.MAYBE
