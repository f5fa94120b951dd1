"""Progress of pulls without bars: lines of text, or JSON for programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, TextIO

from pycrictl.pulls.model import COMPLETE, Awaited, Phase, Pull, PullItem, View
from pycrictl.show.displays import per_image, phrases
from pycrictl.show.displays.host_pulls import Sums
from pycrictl.show.displays.outlet import HEARTBEAT_S, Lines, Objects, Outlet, Silent
from pycrictl.show.displays.pull_bars import Bars
from pycrictl.units import format_bytes, format_part, plural

STALL_REPEAT_S: Final = 30.0


class PlainLines(Lines):
    """One short line for each event: ``IMAGE LAYER what happened``.

    Events are the start and the end of an image, phase changes of a layer (its initial wait is
    none), stalls, and waits for a registry. While anything is in progress, the totals follow at
    least every 10 s. ``aggregate`` leaves the layers out.
    """

    def __init__(self, stderr: TextIO, *, aggregate: bool = False) -> None:
        super().__init__(stderr)
        self._aggregate = aggregate
        self._phases: dict[tuple[str, str], Phase] = {}
        self._over: dict[str, bool] = {}
        self._starts: dict[str, str] = {}
        self._stalled_s: dict[tuple[str, str], float] = {}
        self._awaited_s: dict[str, float] = {}
        self._history = per_image.History(self.note)
        self._heartbeat: float | None = None

    def show(self, view: View) -> None:
        pulls = self._history.look(view)
        lines = [line for pull in pulls for line in self._begins(pull)]
        if not self._aggregate:
            for item in view.changed:
                lines += self._changes(item)
            for item in view.items:
                lines += self._stalls(item)
        for pull in pulls:
            if pull.is_over and not self._over.get(pull.image):
                lines.append(self._summary(pull))
            self._over[pull.image] = pull.is_over
        lines += self._waits(view.awaited)
        lines += self._totals(view, is_idle=all(pull.is_over for pull in pulls))
        self.write(lines)

    def end(self, images: Collection[str]) -> None:
        self._over = {key: value for key, value in self._over.items() if key not in images}
        self._starts = {key: value for key, value in self._starts.items() if key not in images}
        self._phases = {key: value for key, value in self._phases.items() if key[0] not in images}
        self._history.forget(images)

    def close(self) -> None:
        self.write(self._summary(pull) for pull in self._history.pulls if not pull.is_over)
        self._history.last = None

    def _summary(self, pull: Pull) -> str:
        words = self._history.summary(pull).replace("  ", ", ")
        return f"{per_image.name(pull)} {'done: ' if pull.is_complete else ''}{words}"

    def _begins(self, pull: Pull) -> Iterable[str]:
        before = self._starts.get(pull.image, "")
        has_failed_at_once = pull.is_over and not per_image.has_moved(pull)
        if before.startswith("started") or has_failed_at_once:
            return
        queued = next((item for item in pull.items if item.queue_position), None)
        if queued is not None and not per_image.has_moved(pull):
            text = per_image.queue(queued)
        else:
            text = _start(pull, "started" if per_image.has_moved(pull) else "waiting")
        if text != before:
            self._starts[pull.image] = text
            yield f"{per_image.name(pull)} {text}"

    def _changes(self, item: PullItem) -> Iterable[str]:
        key = item.image, item.layer
        before = self._phases.get(key, Phase.WAITING)
        self._phases[key] = item.phase
        if item.phase is not before and item.layer and item.phase is not Phase.FAILED:
            yield f"{_subject(item)} {_phase(item)}"

    def _stalls(self, item: PullItem) -> Iterable[str]:
        key = item.image, item.layer
        if not per_image.is_stalled(item):
            self._stalled_s.pop(key, None)
        elif key not in self._stalled_s or item.idle_s >= self._stalled_s[key] + STALL_REPEAT_S:
            self._stalled_s[key] = item.idle_s
            size = format_part(item.progress, item.total)
            yield f"{_subject(item)} {per_image.stall(item)}, {size}"

    def _waits(self, awaited: Iterable[Awaited]) -> Iterable[str]:
        before, self._awaited_s = self._awaited_s, {}
        for pull in awaited:
            said_s = before.get(pull.image)
            next_s = per_image.AWAITED_S if said_s is None else said_s + STALL_REPEAT_S
            if pull.waited_s >= next_s:
                said_s = pull.waited_s
                yield f"{per_image.awaited_name(pull)} {per_image.awaited(pull)}"
            if said_s is not None:
                self._awaited_s[pull.image] = said_s

    def _totals(self, view: View, *, is_idle: bool) -> Iterable[str]:
        if self._heartbeat is None or is_idle:
            self._heartbeat = view.now
        elif view.now - self._heartbeat >= HEARTBEAT_S:
            self._heartbeat = view.now
            yield phrases.sentence("total", view.totals, *per_image.words_of_totals(view))


def _start(pull: Pull, verb: str) -> str:
    words = [plural(len(pull.items), "layer")] if pull.has_layers else []
    if pull.totals is not None and pull.totals.total:
        words.append(format_bytes(pull.totals.total))
    if present := pull.count(Phase.PRESENT):
        words.append(f"{present} present")
    return f"{verb}: {', '.join(words)}" if words else verb


def _subject(item: PullItem) -> str:
    words = phrases.short_image(item.image) or "pod", phrases.layer(item.layer, item.digest)
    return " ".join(filter(None, words))


def _phase(item: PullItem) -> str:
    if per_image.waits_to_unpack(item):
        return f"waiting {format_bytes(item.total)} to unpack"
    if item.phase is Phase.WAITING and item.queue_position > 0:
        return per_image.queue(item)
    if item.phase in (Phase.WAITING, Phase.DOWNLOADING):
        return f"{item.phase} {format_part(item.progress, item.total)}"
    return f"{item.phase} {format_bytes(item.total or item.progress)}"


class JsonLines(Objects):
    """One JSON object per line for each item that changed.

    ``image``, ``layer``, ``progress``, ``total`` and ``error`` have the meaning of KEP-5334, whose
    readers can therefore use them. Other fields are added where known, among them the sums, the
    rate and the time left of the image. The last line of a complete item has ``progress`` equal to
    ``total``. ``aggregate`` makes one object for all items together, as in the KEP for a pod, with
    the error of the first item that failed.
    """

    def __init__(self, outlet: Outlet, *, aggregate: bool = False) -> None:
        super().__init__(outlet)
        self._aggregate = aggregate
        self._history = per_image.History(self.note)

    def show(self, view: View) -> None:
        self._history.look(view)
        if view.changed:
            self.write_objects(
                [_totals(view)]
                if self._aggregate
                else (_object(item) | self._image(item.image, view) for item in view.changed)
            )

    def end(self, images: Collection[str]) -> None:
        """Do nothing: the objects written so far show the end."""

    @staticmethod
    def _image(image: str, view: View) -> dict[str, Any]:
        totals = view.images.get(image)
        if totals is None or not totals.total:
            return {}
        fields: dict[str, Any] = {"image_progress": totals.progress, "image_total": totals.total}
        if totals.percent is not None:
            fields["percent"] = totals.percent
        fields |= phrases.speed(totals)
        if totals.began is not None:
            fields["elapsed_s"] = round(view.now - totals.began, 1)
        return fields


def _object(item: PullItem) -> dict[str, Any]:
    progress, total = item.progress, item.total
    if item.phase in COMPLETE:
        progress = total = total or progress
    image, _, node = item.image.partition(" on ")
    is_shown = not item.is_estimated or item.phase is Phase.EXTRACTING
    fields: dict[str, Any] = {
        "image": image,
        "node": node,
        "layer": item.layer,
        "progress": progress,
        "total": total,
        "phase": str(item.phase),
        "error": item.error,
        "queue_position": item.queue_position,
        "behind": item.behind,
        "pod": item.pod,
        "resumed": item.resumed,
        "extracted": item.extracted * is_shown,
        "extracted_total": item.extracted_total * is_shown,
        "extracted_estimated": item.is_estimated and is_shown,
        "digest": item.digest,
    }
    return {key: value for key, value in fields.items() if value or key in ("progress", "total")}


def _totals(view: View) -> dict[str, Any]:
    error = next((item.error for item in view.items if item.error), "")
    fields = phrases.fields(view.totals) | phrases.speed(view.totals)
    if view.totals.percent is not None:
        fields["percent"] = view.totals.percent
    return fields | ({"error": error} if error else {})


PullDisplay = Bars | PlainLines | JsonLines | Sums | Silent


def open_display(outlet: Outlet, *, aggregate: bool = False) -> PullDisplay:
    env = outlet.env
    if outlet.form == "none":
        return Silent()
    if outlet.form == "bar":
        return Bars(env.stderr, env.environ, aggregate=aggregate)
    if outlet.form == "plain":
        return PlainLines(env.stderr, aggregate=aggregate)
    return Sums(outlet) if outlet.is_summed else JsonLines(outlet, aggregate=aggregate)
