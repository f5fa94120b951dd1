"""A watcher under test and a record of its results."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable

from pycrictl.pulls.sources.content_watcher import ContentWatcher
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.state import LayerState, Phase
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.containerd.grpc_client import ContainerdClient


class Watch:
    """A watcher with its tracker; ``ways`` records every change of each item.

    ``downloading`` has the number of layers in this phase at each poll.
    """

    def __init__(self, client: ContainerdClient) -> None:
        self.client = client
        self.watcher = ContentWatcher(client)
        self.tracker = Tracker()
        self.items: dict[tuple[str, str], LayerState] = {}
        self.ways: dict[tuple[str, str], list[LayerState]] = {}
        self.results: list[PollResult] = []
        self.downloading: list[int] = []
        self.shares: dict[str, list[float]] = {}

    def poll(self, at_s: float, wall_s: float | None = None) -> PollResult:
        result = self.watcher.poll(at_s, wall_s=wall_s)
        result.apply_to(self.tracker, at_s)
        view = self.tracker.view(at_s, time.time() if wall_s is None else wall_s)
        self.items = {
            (name, layer.name): layer for name, pull in view.pulls.items() for layer in pull.layers
        }
        moving = {key[1] for key, layer in self.items.items() if layer.phase is Phase.DOWNLOADING}
        self.downloading.append(len(moving))
        for name, pull in view.pulls.items():
            self.shares.setdefault(name, []).append(pull.sums.share or 0.0)
        for pull, layer in view.changed:
            self.ways.setdefault((pull.name, layer.name), []).append(layer)
        self.results.append(result)
        return result

    def phases(self, image: str, layer: str) -> list[Phase]:
        """Return the phases that a layer went through, one for each time it entered a phase."""
        return [
            phase for phase, _ in itertools.groupby(item.phase for item in self.ways[image, layer])
        ]

    def layers(self, image: str) -> list[LayerState]:
        return [layer for (name, _), layer in self.items.items() if name == image]

    def error(self, image: str) -> str:
        return self.tracker.pulls[image].error

    @property
    def endings(self) -> list[tuple[str, str]]:
        ended = [pull for result in self.results for pull in result.ended]
        return [(pull.image, pull.error) for pull in ended]

    def until(
        self,
        is_over: Callable[[], object],
        *,
        interval_s: float = 0.05,
        timeout_s: float = 60.0,
        survives: tuple[type[Exception], ...] = (),
    ) -> None:
        """Poll a real containerd in real time until ``is_over`` returns true."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            assert now < give_up_at, f"in vain; {self.items} {self.endings}"
            with contextlib.suppress(*survives):
                self.poll(now)
            if is_over():
                return
            time.sleep(interval_s)
