"""A pull with its progress, for every command that pulls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pycrictl.pull.image import pull, pull_in_turn
from pycrictl.show.displays.pulls import open_display

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.pull.image import Turns
    from pycrictl.show.displays.modes import Outlet


def pull_image(
    client: CriClient,
    request: cri_pb2.PullImageRequest,
    outlet: Outlet,
    *,
    timeout_s: float,
    turns: Turns | None = None,
    wants_manifests: bool = True,
) -> str:
    """Pull one image and return the runtime's reference to it.

    Args:
        outlet: where its progress is shown.
        timeout_s: limit of the pull, 0 for none.
        turns: the limit of parallel pulls to keep; None for none.
        wants_manifests: whether the registry may be asked for what CRI-O does not show.

    Raises:
        RuntimeFault: the pull failed.
        Interrupted: Ctrl-C; the pull was cancelled.
    """
    run = pull if turns is None else partial(pull_in_turn, turns=turns)
    return run(
        client,
        request,
        timeout_s=timeout_s or None,
        open_sink=None if outlet.form == "none" else partial(open_display, outlet),
        interval_s=outlet.interval_s,
        wants_manifests=wants_manifests,
    )
