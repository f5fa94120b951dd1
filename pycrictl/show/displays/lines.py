"""Progress for those who cannot see a bar: logs, pipes and programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from pycrictl.progress.tracker import Awaited, Item, Phase, View
from pycrictl.show.displays import per_image, phrases
from pycrictl.units import format_bytes

if TYPE_CHECKING:
    from pycrictl.show.displays.per_image import ImagePull

HEARTBEAT_S: Final = 9.0
"""With a view each second, totals come at least every 10 s."""

STALL_REPEAT_S: Final = 30.0


class _Notes:
    """Lines for people on stderr; when nobody reads them any more they are dropped."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr: TextIO | None = stderr
        self._has_told_dropped = False

    def note(self, text: str) -> None:
        self._tell([phrases.clean(text)])

    def _note_dropped(self, view: View) -> None:
        """Says once that there are more items than are kept."""
        if view.dropped and not self._has_told_dropped:
            self._has_told_dropped = True
            self.note(per_image.dropped(view))

    def _tell(self, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        if text and self._stderr is not None:
            try:
                self._stderr.write(text)
                self._stderr.flush()
            except (OSError, ValueError):  # the pipe or the terminal is gone
                self._stderr = None


class PlainLines(_Notes):
    """One short line for each event: ``IMAGE LAYER what happened``.

    Images that begin and end, layers that change their phase (a layer that waits at first has not
    changed), stalls, pulls that wait for their registry, and while anything is on its way the
    totals at least every 10 s.

    Args:
        stderr: where the lines go.
        aggregate: leaves the layers out.
    """

    def __init__(self, stderr: TextIO, *, aggregate: bool = False) -> None:
        super().__init__(stderr)
        self._aggregate = aggregate
        self._phases: dict[tuple[str, str], Phase] = {}
        self._over: dict[str, bool] = {}
        self._stalls_told: dict[tuple[str, str], float] = {}
        self._awaited_told: dict[str, float] = {}
        self._stopwatch = per_image.Stopwatch()
        self._heartbeat: float | None = None
        self._last: View | None = None
        self._is_closed = False

    def show(self, view: View) -> None:
        """Writes the lines for what is new in ``view``."""
        self._last = view
        pulls = per_image.by_image(view.items)
        self._stopwatch.look(pulls, view.now)
        lines = [f"{pull.name} {_start(pull)}" for pull in pulls if pull.image not in self._over]
        if not self._aggregate:
            for item in view.changed:
                lines += self._changes(item)
            for item in view.items:
                lines += self._stalls(item)
        for pull in pulls:
            if pull.is_over and not self._over.get(pull.image):
                lines.append(self._summary(pull, view.now))
            self._over[pull.image] = pull.is_over
        lines += self._waits(view.awaited)
        lines += self._totals(view, is_idle=all(pull.is_over for pull in pulls))
        self._tell(lines)
        self._note_dropped(view)

    def end(self, images: Collection[str]) -> None:
        """Forgets these images: ``show`` has told their ends."""
        self._over = {key: value for key, value in self._over.items() if key not in images}
        self._phases = {key: value for key, value in self._phases.items() if key[0] not in images}
        self._stopwatch.forget(images)

    def close(self, view: View | None = None) -> None:
        """Writes what is new in ``view``, and how far the images came that have not ended."""
        if self._is_closed:
            return
        self._is_closed = True
        if view is not None and view is not self._last:
            self.show(view)
        if self._last is not None:
            now = self._last.now
            pulls = per_image.by_image(self._last.items)
            self._tell(self._summary(pull, now) for pull in pulls if not pull.is_over)

    def _summary(self, pull: ImagePull, now: float) -> str:
        words = pull.summary(self._stopwatch.elapsed_s(pull.image, now))
        return f"{pull.name} {'done: ' if pull.is_complete else ''}{words.replace('  ', ', ')}"

    def _changes(self, item: Item) -> Iterable[str]:
        key = item.image, item.layer
        before = self._phases.get(key, Phase.WAITING)
        self._phases[key] = item.phase
        if item.phase is not before and item.layer:
            yield f"{_subject(item)} {_phase(item)}"

    def _stalls(self, item: Item) -> Iterable[str]:
        key = item.image, item.layer
        if not per_image.is_stalled(item):
            self._stalls_told.pop(key, None)
        elif item.idle_s >= self._stalls_told.get(key, 0.0) + STALL_REPEAT_S:
            self._stalls_told[key] = item.idle_s
            size = phrases.part(item.progress, item.total)
            yield f"{_subject(item)} {per_image.stall(item)}, {size}"

    def _waits(self, awaited: Iterable[Awaited]) -> Iterable[str]:
        before, self._awaited_told = self._awaited_told, {}
        for pull in awaited:
            told_s = before.get(pull.image)
            next_s = per_image.AWAITED_S if told_s is None else told_s + STALL_REPEAT_S
            if pull.waited_s >= next_s:
                told_s = pull.waited_s
                yield f"{per_image.awaited_name(pull)} {per_image.awaited(pull)[0]}"
            if told_s is not None:
                self._awaited_told[pull.image] = told_s

    def _totals(self, view: View, *, is_idle: bool) -> Iterable[str]:
        if self._heartbeat is None or is_idle:
            self._heartbeat = view.now
        elif view.now - self._heartbeat >= HEARTBEAT_S:
            self._heartbeat = view.now
            totals = view.totals
            percent = f"{phrases.percent(totals.progress, totals.total)}%" if totals.total else ""
            words = [percent, *map(str.strip, per_image.totals_words(view))]
            yield " ".join(["total", *filter(None, words)])


def _start(pull: ImagePull) -> str:
    words = [phrases.plural(len(pull.items), "layer")] if pull.has_layers else []
    if pull.total:
        words.append(format_bytes(pull.total))
    if present := pull.count(Phase.PRESENT):
        words.append(f"{present} present")
    return f"started: {', '.join(words)}" if words else "started"


def _subject(item: Item) -> str:
    words = phrases.short_image(item.image) or "pod", phrases.short_digest(item.layer)
    return " ".join(filter(None, words))


def _phase(item: Item) -> str:
    if item.phase is Phase.FAILED:
        return per_image.failure(item)
    if item.phase is Phase.WAITING and item.queue_position > 0:
        return f"queued, {phrases.ordinal(item.queue_position)}"
    if item.phase in (Phase.WAITING, Phase.DOWNLOADING):
        return f"{item.phase} {phrases.part(item.progress, item.total)}"
    return f"{item.phase} {format_bytes(item.total)}"


class JsonLines(_Notes):
    """One JSON object a line on stdout for each item that changed.

    ``image``, ``layer``, ``progress``, ``total`` and ``error`` are KEP-5334's fields with its
    meaning, so that its readers work on them; ``phase``, ``queue_position``, ``extracted`` and
    ``extracted_total`` are added where they are known, and ``time`` (RFC 3339, UTC). The last line
    of an item that has arrived has ``progress`` equal to ``total``. Notes go to stderr.

    Args:
        stdout: where the objects go; if it is closed, ``BrokenPipeError`` is raised.
        stderr: where the notes go.
        aggregate: one object for all items together, as the KEP has it for a pod; ``error`` is that
            of the first item that failed.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        *,
        aggregate: bool = False,
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__(stderr)
        self._stdout = stdout
        self._aggregate = aggregate
        self._wall_clock = wall_clock
        self._last: View | None = None

    def show(self, view: View) -> None:
        """Writes an object for each item that changed since the view before."""
        self._last = view
        if view.changed:
            now = datetime.fromtimestamp(self._wall_clock(), UTC)
            time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            objects = [_totals(view)] if self._aggregate else map(_object, view.changed)
            lines = (json.dumps({**fields, "time": time}) + "\n" for fields in objects)
            self._stdout.write("".join(lines))
            self._stdout.flush()
        self._note_dropped(view)

    def end(self, images: Collection[str]) -> None:
        """Does nothing: the objects have told it."""

    def close(self, view: View | None = None) -> None:
        """Writes what is new in ``view``."""
        if view is not None and view is not self._last:
            self.show(view)


def _object(item: Item) -> dict[str, Any]:
    progress, total = item.progress, item.total
    if item.phase in per_image.COMPLETE:
        progress = total = total or progress
    fields: dict[str, Any] = {"image": item.image, "layer": item.layer}
    fields = {key: value for key, value in fields.items() if value}
    fields |= {"progress": progress, "total": total}
    extra = {
        "phase": str(item.phase),
        "error": item.error,
        "queue_position": item.queue_position,
        "extracted": item.extracted,
        "extracted_total": item.extracted_total,
    }
    return fields | {key: value for key, value in extra.items() if value}


def _totals(view: View) -> dict[str, Any]:
    fields: dict[str, Any] = {"progress": view.totals.progress, "total": view.totals.total}
    if error := next((item.error for item in view.items if item.error), ""):
        fields["error"] = error
    return fields


class Silent:
    """Shows nothing: what goes wrong is raised, and told by the program's end."""

    def show(self, view: View) -> None:
        """Does nothing."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def end(self, images: Collection[str]) -> None:
        """Does nothing."""

    def close(self, view: View | None = None) -> None:
        """Does nothing."""
