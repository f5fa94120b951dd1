"""Progress of pulls without bars: lines of text, or JSON for programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final, TextIO

from pycrictl.base.units import format_bytes, format_part, plural
from pycrictl.pulls.messages import fields_of
from pycrictl.pulls.state import LayerState, Phase, PullState, View
from pycrictl.show.displays import per_image, phrases
from pycrictl.show.displays.host_pulls import SumsOfHost
from pycrictl.show.displays.outlet import HEARTBEAT_S, Lines, Objects, Outlet, Silent
from pycrictl.show.displays.pull_bars import Bars

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
        self._places: dict[str, tuple[int, str, bool]] = {}
        self._history = per_image.History(self.note)
        self._heartbeat: float | None = None

    def show(self, view: View) -> None:
        pulls = self._history.look(view)
        lines = [line for pull in pulls for line in self._begins(pull)]
        if not self._aggregate:
            for pull, layer in view.changed:
                lines += self._changes(pull, layer)
            for pull in pulls:
                lines += self._stalls(pull)
        for pull in pulls:
            if pull.is_over and not self._over.get(pull.name):
                lines.append(self._summary(pull))
            self._over[pull.name] = pull.is_over
        lines += self._waits(view)
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

    def _summary(self, pull: PullState) -> str:
        words = self._history.summary(pull).replace("  ", ", ")
        return f"{per_image.name(pull)} {'done: ' if pull.is_complete else ''}{words}"

    def _begins(self, pull: PullState) -> Iterable[str]:
        before = self._starts.get(pull.name, "")
        has_failed_at_once = pull.is_over and not pull.has_started
        if before.startswith("started") or has_failed_at_once:
            return
        if pull.place and not pull.has_started:
            text = per_image.queue(replace(pull, starts_in_s=None))
        else:
            text = _start(pull, "started" if pull.has_started else "waiting")
        if text != before:
            self._starts[pull.name] = text
            yield f"{per_image.name(pull)} {text}"

    def _changes(self, pull: PullState, layer: LayerState) -> Iterable[str]:
        key = pull.name, layer.name
        before = self._phases.get(key, Phase.WAITING)
        self._phases[key] = layer.phase
        if layer.phase is not before and layer.name and layer.phase is not Phase.FAILED:
            yield f"{_subject(pull, layer)} {_phase(layer)}"

    def _stalls(self, pull: PullState) -> Iterable[str]:
        for layer in pull.layers:
            key, said_s = (pull.name, layer.name), layer.stalled_s
            if not said_s:
                self._stalled_s.pop(key, None)
            elif key not in self._stalled_s or said_s >= self._stalled_s[key] + STALL_REPEAT_S:
                self._stalled_s[key] = said_s
                size = format_part(layer.progress, layer.total)
                yield f"{_subject(pull, layer)} {per_image.stall(layer)}, {size}"

    def _waits(self, view: View) -> Iterable[str]:
        before, self._awaited_s = self._awaited_s, {}
        for pull in view.awaited:
            said_s = before.get(pull.image)
            waited_s = per_image.waited(pull, view.wall_s)
            next_s = per_image.AWAITED_S if said_s is None else said_s + STALL_REPEAT_S
            place = pull.place, pull.behind, pull.starts_in_s is not None
            has_moved_up = pull.place and self._places.get(pull.image) != place
            self._places[pull.image] = place
            if waited_s >= next_s or has_moved_up:
                said_s = waited_s
                yield f"{per_image.awaited_name(pull)} {per_image.awaited(pull, view.wall_s)}"
            if said_s is not None:
                self._awaited_s[pull.image] = said_s

    def _totals(self, view: View, *, is_idle: bool) -> Iterable[str]:
        if self._heartbeat is None or is_idle:
            self._heartbeat = view.now
        elif view.now - self._heartbeat >= HEARTBEAT_S:
            self._heartbeat = view.now
            yield phrases.sentence("total", view.sums, *per_image.words_of_sums(view))


def _start(pull: PullState, verb: str) -> str:
    words = [plural(len(pull.layers), "layer")] if pull.has_layers else []
    if pull.sums.total:
        words.append(format_bytes(pull.sums.total))
    if present := pull.count(Phase.PRESENT):
        words.append(f"{present} present")
    return f"{verb}: {', '.join(words)}" if words else verb


def _subject(pull: PullState, layer: LayerState) -> str:
    words = phrases.short_image(pull.name) or "pod", phrases.layer(layer.name, layer.digest)
    return " ".join(filter(None, words))


def _phase(layer: LayerState) -> str:
    if per_image.waits_to_unpack(layer):
        return f"waiting {format_bytes(layer.total)} to unpack"
    if layer.phase in (Phase.WAITING, Phase.DOWNLOADING):
        return f"{layer.phase} {format_part(layer.progress, layer.total)}"
    return f"{layer.phase} {format_bytes(layer.total or layer.progress)}"


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
        self._sums: dict[str, Any] = {}
        self._places: dict[str, tuple[int, str, bool]] = {}

    def show(self, view: View) -> None:
        self._history.look(view)
        if self._aggregate:
            # Also without a new byte: the time left is known before containerd tells of the first.
            if (sums := _sums(view)) != self._sums and (view.changed or "eta_s" in sums):
                self.write_objects([sums])
                self._sums = sums
        elif view.changed:
            self.write_objects(
                _object(*change) | _of_image(*change, view) for change in view.changed
            )
        else:
            self.write_objects(self._queued(view))

    def _queued(self, view: View) -> Iterable[dict[str, Any]]:
        """Return objects for the pulls whose place in the line has changed."""
        for pull in view.awaited:
            place = pull.place, pull.behind, pull.starts_in_s is not None
            if pull.place and self._places.get(pull.image) != place:
                self._places[pull.image] = place
                yield _object(pull, LayerState())

    def end(self, images: Collection[str]) -> None:
        """Do nothing: the objects written so far show the end."""


def _of_image(pull: PullState, layer: LayerState, view: View) -> dict[str, Any]:
    sums = pull.sums
    if not sums.total:
        return {}
    fields: dict[str, Any] = {"image_progress": sums.progress, "image_total": sums.total}
    if sums.percent is not None:
        fields["percent"] = sums.percent
    fields |= phrases.speed(sums)
    if pull.began_s:
        fields["elapsed_s"] = round(view.wall_s - pull.began_s, 1)
    return fields


def _object(pull: PullState, layer: LayerState) -> dict[str, Any]:
    fields = fields_of(pull, layer)
    if pull.node:
        fields["node"] = pull.node
    if layer.is_estimated and layer.phase is Phase.EXTRACTING:
        fields |= {"extracted_total": layer.extracted_total, "extracted_estimated": True}
    return fields


def _sums(view: View) -> dict[str, Any]:
    error = next((pull.error for pull in view.pulls.values() if pull.error), "")
    fields = phrases.fields(view.sums) | phrases.speed(view.sums)
    if view.sums.percent is not None:
        fields["percent"] = view.sums.percent
    return fields | ({"error": error} if error else {})


PullDisplay = Bars | PlainLines | JsonLines | SumsOfHost | Silent


def open_display(outlet: Outlet, *, aggregate: bool = False) -> PullDisplay:
    env = outlet.env
    if outlet.form == "none":
        return Silent()
    if outlet.form == "bar":
        return Bars(env.stderr, env.environ, aggregate=aggregate)
    if outlet.form == "plain":
        return PlainLines(env.stderr, aggregate=aggregate)
    return SumsOfHost(outlet) if outlet.is_summed else JsonLines(outlet, aggregate=aggregate)
