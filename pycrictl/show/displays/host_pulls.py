"""Pulls on several hosts as one display: a line for each host, and the total."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pycrictl.base.units import duration_in_words, format_bytes, plural
from pycrictl.pulls.messages import sums_in, sums_json
from pycrictl.pulls.state import Sums, View
from pycrictl.show.displays import per_image, phrases
from pycrictl.show.displays.meters import Meter, Meters, sentence, total_line
from pycrictl.show.displays.outlet import BAR_INTERVAL_S, HEARTBEAT_S, Lines, Objects
from pycrictl.show.render import Tone, painted

if TYPE_CHECKING:
    from pycrictl.base.environ import Environment

_NOTHING: Final = Sums()


class SumsOfHost(Objects):
    """What a host reports of its pulls: the sums of each view, with words about them."""

    def show(self, view: View) -> None:
        words = [per_image.awaited(pull, view.wall_s) for pull in view.awaited[:1]]
        words = words or per_image.words_of_sums(view)
        self.write_objects([{"sums": sums_json(view.sums), "words": words}])

    def end(self, images: Collection[str]) -> None:
        """Do nothing: the sums written so far show the end."""


@dataclass
class _Host:
    """The pulls of one host.

    ``took_s`` is None until it has ended; ``failure`` says why it did not succeed.
    """

    sums: Sums = _NOTHING
    words: Sequence[str] = field(default=("waiting",))
    took_s: float | None = None
    failure: str = ""

    @property
    def end(self) -> str:
        assert self.took_s is not None
        if self.failure:
            return f"failed: {phrases.clean(self.failure)}"
        size = format_bytes(self.sums.total) if self.sums.total else ""
        return sentence("done", size, f"in {duration_in_words(self.took_s)}")


class HostPulls:
    """The display of the client; without bars, a line for each host that ends, and the total."""

    def __init__(self, env: Environment, hosts: Sequence[str], *, is_drawn: bool) -> None:
        self._hosts = {host: _Host() for host in hosts}
        self._width = min(max(map(phrases.width, hosts)), 24)
        self._meters = Meters(env.stderr, env.environ) if is_drawn else None
        self._lines = Lines(env.stderr)
        self._began_s = self._shown_s = time.monotonic()

    def report(self, host: str, content: Mapping[str, Any]) -> None:
        pulls = self._hosts[host]
        pulls.sums = sums_in(content.get("sums")) or pulls.sums
        pulls.words = [phrases.clean(str(word)) for word in content.get("words") or ()]

    def end(self, host: str, failure: str) -> None:
        pulls = self._hosts[host]
        pulls.took_s, pulls.failure = time.monotonic() - self._began_s, failure
        if self._meters is None:
            self._lines.write([f"{host} {pulls.end}"])

    def tick(self, now_s: float) -> None:
        if self._meters is not None and now_s - self._shown_s >= BAR_INTERVAL_S:
            self._shown_s = now_s
            width, rows = self._meters.measure()
            self._meters.draw([*self._of_hosts(width, max(rows - 2, 0)), self._total(width)])
        elif self._meters is None and now_s - self._shown_s >= HEARTBEAT_S:
            self._shown_s = now_s
            self._lines.write([phrases.sentence("total", self._sum(), *self._counts())])

    def close(self) -> None:
        """Replace bars by the last line of each host."""
        if self._meters is not None:
            ended = [host for host, pulls in self._hosts.items() if pulls.took_s is not None]
            self._meters.replace(painted(*self._last(host)) for host in ended)

    def _last(self, host: str) -> tuple[str, Tone]:
        pulls = self._hosts[host]
        return self._label(host) + pulls.end, "bad" if pulls.failure else ""

    def _of_hosts(self, width: int, most: int) -> list[Meter | str]:
        """Return lines for as many hosts as fit: those that are not done, then failed ones."""
        hosts = self._hosts
        running = [host for host in hosts if hosts[host].took_s is None]
        order = running + sorted({*hosts} - {*running}, key=lambda host: not hosts[host].failure)
        shown = order[: most if len(order) <= most else max(most - 1, 0)]
        lines: list[Meter | str] = []
        for host in filter(shown.__contains__, hosts):
            if hosts[host].took_s is None:
                words = hosts[host].words
                lines.append(total_line(self._label(host).rstrip(), hosts[host].sums, words, width))
            else:
                text, tone = self._last(host)
                lines.append(painted(phrases.cut(text, width), tone or "quiet"))
        return [*lines, f"… {len(order) - len(shown)} more"] if len(shown) < len(order) else lines

    def _label(self, host: str) -> str:
        return f"{phrases.fill(host, self._width)}  "

    def _total(self, width: int) -> Meter | str:
        return total_line("Total", self._sum(), self._counts(), width)

    def _counts(self) -> list[str]:
        ended = [pulls for pulls in self._hosts.values() if pulls.took_s is not None]
        failed = sum(bool(pulls.failure) for pulls in ended)
        words = [f"{len(ended) - failed}/{plural(len(self._hosts), 'host')}"]
        return [*words, f"{failed} failed"] if failed else words

    def _sum(self) -> Sums:
        """Return the sums over all hosts; the time left is that of the slowest."""
        every = [pulls.sums for pulls in self._hosts.values()]
        busy = [pulls.sums for pulls in self._hosts.values() if pulls.took_s is None]
        rates = [sums.rate for sums in busy if sums.rate is not None]
        etas = [sums.eta_s for sums in busy]
        known = [eta_s for eta_s in etas if eta_s is not None]
        return Sums(
            progress=sum(sums.progress for sums in every),
            total=sum(sums.total for sums in every),
            done=sum(sums.done for sums in every),
            count=sum(sums.count for sums in every),
            failed=sum(sums.failed for sums in every),
            rate=sum(rates) if rates else None,
            eta_s=max(known) if known and len(known) == len(etas) else None,
        )
