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

REPEAT_S: Final = 30.0
"""How often a state that lasts, such as a stall, is reported again."""


class PlainLines(Lines):
    """One short line for each event: ``IMAGE LAYER what happened``.

    Events are the start and the end of an image, phase changes of a layer (but not its initial
    wait), stalls, and waits for a registry. While anything is in progress, the totals follow at
    least every 10 s.
    """

    def __init__(self, stderr: TextIO) -> None:
        super().__init__(stderr)
        self._history = per_image.History()
        # What was said last, by the name of the pull and what it was about
        self._said: dict[tuple[object, ...], Any] = {}
        self._heartbeat: float | None = None

    def show(self, view: View) -> None:
        pulls = self._history.add(view)
        lines = [line for pull in pulls for line in self._begins(pull)]
        for pull, layer in view.changed:
            lines += self._changes(pull, layer)
        for pull in pulls:
            lines += self._stalls(pull)
        for pull in pulls:
            if self._is_news((pull.name, "over"), pull.is_over) and pull.is_over:
                lines.append(self._summary(pull))
        lines += self._waits(view)
        lines += self._totals(view, is_idle=all(pull.is_over for pull in pulls))
        self.write(lines)

    def end(self, images: Collection[str]) -> None:
        self._said = {key: said for key, said in self._said.items() if key[0] not in images}
        self._history.forget(images)

    def close(self) -> None:
        self.write(self._summary(pull) for pull in self._history.pulls if not pull.is_over)
        self._history.last = None

    def _is_news(self, key: tuple[object, ...], said: object) -> bool:
        """Store what is said of something; return whether it differs from what was said before."""
        before, self._said[key] = self._said.get(key), said
        return said != before

    def _is_due(self, key: tuple[object, ...], lasts_s: float, first_s: float = 0.0) -> bool:
        """Return whether to say how long something lasts: after ``first_s``, then at intervals."""
        before_s = self._said.get(key)
        if lasts_s < first_s or (before_s and before_s <= lasts_s < before_s + REPEAT_S):
            return False
        self._said[key] = lasts_s
        return True

    def _summary(self, pull: PullState) -> str:
        words = self._history.summary(pull).replace("  ", ", ")
        return f"{per_image.name(pull)} {'done: ' if pull.is_complete else ''}{words}"

    def _begins(self, pull: PullState) -> Iterable[str]:
        key = pull.name, "begins"
        has_failed_at_once = pull.is_over and not pull.has_started
        if self._said.get(key, "").startswith("started") or has_failed_at_once:
            return
        if pull.place and not pull.has_started:
            text = per_image.queue(replace(pull, starts_in_s=None))
        else:
            text = _start(pull, "started" if pull.has_started else "waiting")
        if self._is_news(key, text):
            yield f"{per_image.name(pull)} {text}"

    def _changes(self, pull: PullState, layer: LayerState) -> Iterable[str]:
        key = pull.name, "phase", layer.name
        self._said.setdefault(key, Phase.WAITING)
        if self._is_news(key, layer.phase) and layer.name and layer.phase is not Phase.FAILED:
            yield f"{_subject(pull, layer)} {_phase(layer)}"

    def _stalls(self, pull: PullState) -> Iterable[str]:
        for layer in pull.layers:
            if layer.stalled_s and self._is_due((pull.name, "stall", layer.name), layer.stalled_s):
                size = format_part(layer.progress, layer.total)
                yield f"{_subject(pull, layer)} {per_image.stall(layer)}, {size}"

    def _waits(self, view: View) -> Iterable[str]:
        for pull in view.awaited:
            key, waited_s = (pull.image, "waits", pull.began_s), per_image.waited(pull, view.wall_s)
            has_moved_up = self._is_news((pull.image, "place"), _place(pull)) and pull.place
            if has_moved_up or self._is_due(key, waited_s, per_image.AWAITED_S):
                yield f"{per_image.awaited_name(pull)} {per_image.awaited(pull, view.wall_s)}"

    def _totals(self, view: View, *, is_idle: bool) -> Iterable[str]:
        if self._heartbeat is None or is_idle:
            self._heartbeat = view.now
        elif view.now - self._heartbeat >= HEARTBEAT_S:
            self._heartbeat = view.now
            yield phrases.sentence("total", view.sums, *per_image.words_of_sums(view))


def _place(pull: PullState) -> tuple[int, str, bool]:
    """Return a place in the line; of the time, which always changes, only whether it is known."""
    return pull.place, pull.behind, pull.starts_in_s is not None


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
        return f"waiting to unpack {format_bytes(layer.total)}"
    if layer.phase in (Phase.WAITING, Phase.DOWNLOADING):
        return f"{layer.phase} {format_part(layer.progress, layer.total)}"
    return f"{layer.phase} {format_bytes(layer.total or layer.progress)}"


class JsonLines(Objects):
    """One JSON object per line for each item that changed.

    ``image``, ``layer``, ``progress``, ``total`` and ``error`` have the meaning of KEP-5334, so
    clients of the KEP can read them. Other fields are added where known, among them the sums, the
    rate and the time left of the image. The last line of a complete item has ``progress`` equal to
    ``total``.
    """

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._places: dict[str, tuple[int, str, bool]] = {}

    def show(self, view: View) -> None:
        if view.changed:
            self.write_objects(
                _object(*change) | _of_image(*change, view) for change in view.changed
            )
        else:
            self.write_objects(self._queued(view))

    def _queued(self, view: View) -> Iterable[dict[str, Any]]:
        """Return objects for the pulls whose place in the line has changed."""
        for pull in view.awaited:
            if pull.place and self._places.get(pull.image) != _place(pull):
                self._places[pull.image] = _place(pull)
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
    if sums.current_rate is not None:
        fields["rate"] = round(sums.current_rate)
    if sums.eta_s is not None:
        fields["eta_s"] = round(sums.eta_s, 1)
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


PullDisplay = Bars | PlainLines | JsonLines | SumsOfHost | Silent


def open_display(outlet: Outlet) -> PullDisplay:
    env = outlet.env
    if outlet.form == "none":
        return Silent()
    if outlet.form == "bar":
        return Bars(env.stderr, env.environ)
    if outlet.form == "plain":
        return PlainLines(env.stderr)
    return SumsOfHost(outlet) if outlet.is_summed else JsonLines(outlet)
