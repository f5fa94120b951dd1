"""A pull with its progress, for every command that pulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cli.context import AppContext
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.pull.image import Turns
    from pycrictl.show.displays.pulls import Display


def pull_image(
    app: AppContext,
    client: CriClient,
    request: cri_pb2.PullImageRequest,
    *,
    timeout_s: float,
    mode: str = "auto",
    turns: Turns | None = None,
) -> str:
    """Pulls one image and returns the runtime's reference to it.

    Args:
        timeout_s: limit of the pull, 0 for none.
        mode: how progress is shown on stderr; ``auto`` shows it on a terminal only.
        turns: the limit of parallel pulls to keep; None for none.

    Raises:
        RuntimeFault: the pull failed.
        Interrupted: Ctrl-C; the pull was cancelled.
    """
    from pycrictl.pull.image import pull, pull_in_turn
    from pycrictl.show.displays.pulls import open_display

    env = app.env
    mode = app.progress_mode(mode)
    if mode == "auto" and not env.stderr_is_terminal:
        mode = "none"

    def open_sink() -> Display:
        # What progress there is goes to stderr in every mode: stdout is for the result.
        return open_display(
            mode,
            stderr=env.stderr,
            stdout=env.stderr,
            environ=env.environ,
            wall_clock=env.wall_clock,
        )

    limit_s = timeout_s or None
    sink = None if mode == "none" else open_sink
    interval_s = 0.25 if env.stderr_is_terminal else 1.0
    if turns is None:
        return pull(client, request, timeout_s=limit_s, open_sink=sink, interval_s=interval_s)
    return pull_in_turn(
        client, request, turns, timeout_s=limit_s, open_sink=sink, interval_s=interval_s
    )
