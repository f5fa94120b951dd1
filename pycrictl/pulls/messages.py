"""Pulls as JSON, written and read here alone: progress messages, ImagePull objects, the line. Pure.

* A *message* of the progress stream (KEP-5334) is one JSON object about a layer, an image or a pod.
  The KEP's keys are ``image``, ``layer``, ``progress``, ``total`` and ``error``. Ours are added;
  clients that implement only the KEP ignore them. Over a WebSocket every message has its own frame,
  over plain HTTP its own line. A message that names neither an image nor a layer, and has no bytes,
  says that nothing is being pulled.
* The *status* of an ImagePull has the sums and, for people, the fields that its schema explains.
* The *line* is the status of a proxy's pull limiter (``proxy.pulls.limiter_status``).

A server that sends only the KEP's keys is interpreted here, and nowhere else:

* A report with an error means ``failed``, whatever phase it names. Otherwise a named phase applies.
  Without one, a known total that is reached means ``done``, any bytes ``downloading``, and no bytes
  ``waiting``. Only the latest report counts: one without an error revives a failed layer. A layer
  whose bytes have all arrived never goes back to ``downloading``.
* A total of 0 or less is unknown, progress below 0 is 0. A total below the progress was too low an
  estimate and grows with it. A completed layer is whole. An error without numbers keeps them.
* An image with layers is not reported itself, but its end is the end of all its layers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pycrictl import foreign
from pycrictl.foreign import count, mapping, mappings, moment, text
from pycrictl.pulls.state import COMPLETE, STALLED_S, LayerState, Phase, PullState, Sums
from pycrictl.units import (
    duration_in_words,
    escape,
    format_duration,
    format_moment,
    parse_duration,
    quote,
)

WHOLE_NODE: Final = "*"
"""As a pod sandbox ID: all pods of the node, and pulls without a pod. KEP-5334 requires an ID."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest message that is accepted by default."""

MAX_TEXT: Final = 4096
"""Longest image reference, layer digest or error text, in characters.

A message with a longer name is rejected, since a truncated name would name something else; a longer
error text is truncated.
"""

MAX_LAYERS: Final = 200
"""The maximum number of layers in an ImagePull object."""

_LONGEST_S: Final = 1e11
_EXCERPT: Final = 60
_NAME: Final = f"a string of at most {MAX_TEXT} characters"
_JSON_SPACE: Final = " \t\r\n"
_NUMBER_KEYS: Final = frozenset({"progress", "total"})
_PHASES: Final[dict[str, Phase]] = {phase.value: phase for phase in Phase}


# Messages of the progress stream


class _Report(NamedTuple):
    """The content of one message; missing fields are empty strings or zeros."""

    image: str = ""
    layer: str = ""
    progress: int = 0
    total: int = 0
    error: str = ""
    phase: str = ""
    queue_position: int = 0
    extracted: int = 0
    extracted_total: int = 0
    resumed: int = 0
    started: float = 0.0  # when the pull began (Unix time)
    behind: str = ""  # the pod or image ahead of it in the line
    starts_in_s: float = 0.0
    pod: str = ""
    digest: str = ""  # of a layer with another name
    idle_s: float = 0.0  # of a layer that has stalled
    sums: Mapping[str, Any] | None = None  # in the first report of an image


class _NotAReport(ValueError):
    """The message is not a valid report; the exception's text says why."""


class MessageReader:
    """Turns messages into states of pulls; counts and skips bad ones.

    Use ``receive_message`` for messages with boundaries of their own (WebSocket), or
    ``receive_data`` and ``receive_eof`` for a stream of lines. No input makes it raise. It buffers
    at most ``max_message_bytes`` of a line; the rest of a longer line is read as another one.
    ``first_bad`` describes the first message skipped in one printable line.

    Args:
        known: the pulls by name, which each message changes a part of; the caller updates them
            with each result before it takes the next one.
    """

    def __init__(
        self, known: Mapping[str, PullState], *, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.bad_count = 0
        self.first_bad: str | None = None
        self._known = known
        self._max_message_bytes = max_message_bytes
        self._line = b""

    def receive_message(self, message: str | bytes | bytearray) -> PullState | None:
        """Decode one message; None if it is blank or bad.

        Missing keys and nulls become empty strings or zeros, ``5.0`` and ``5e0`` are accepted as
        integers, unknown keys are ignored. One of our additional keys counts as missing if its
        value has another type: another runtime may use that key for something else.
        """
        try:
            report = _decoded(message, self._max_message_bytes)
        except _NotAReport as exc:
            self.bad_count += 1
            if self.first_bad is None:
                excerpt = message[:_EXCERPT]
                shown = excerpt if isinstance(excerpt, str) else excerpt.decode(errors="replace")
                self.first_bad = f"{exc}: {quote(shown, _EXCERPT)}"
            return None
        return None if report is None else _merged(report, self._known.get(report.image))

    def receive_data(self, data: bytes | bytearray) -> Iterator[PullState]:
        """Read the next bytes of a stream of lines; iterate over the states that they complete.

        A line ends with LF or CRLF.
        """
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > self._max_message_bytes:
            lines.append(self._line)
            self._line = b""
        return (pull for pull in map(self.receive_message, lines) if pull is not None)

    def receive_eof(self) -> Iterator[PullState]:
        """Handle the end of a stream of lines; iterate over the state of a last line without LF."""
        line, self._line = self._line, b""
        return (pull for pull in map(self.receive_message, [line]) if pull is not None)


class MessageWriter:
    """Turns states of pulls into messages: all at first, and then those that have changed.

    Attributes:
        last: the last message, to be repeated if there is nothing to say.
    """

    def __init__(self) -> None:
        self.last = ""
        self._sent: dict[tuple[str, str], _Report] = {}

    def changes(self, pulls: Iterable[PullState]) -> list[str]:
        """Return the messages that bring a reader up to date, each one line of ASCII without LF."""
        found = []
        for pull in pulls:
            for report in _reports_on(pull):
                key = report.image, report.layer
                if self._sent.get(key) != (news := _news(report)):
                    self._sent[key] = news
                    found.append(_encoded(report))
        if found:
            self.last = found[-1]
        return found


NOTHING: Final = '{"progress":0,"total":0}'
"""The message that nothing is being pulled."""


def forwarded(line: bytes) -> bytes | None:
    """Return a message from another server, validated and encoded anew; None if it is none."""
    try:
        report = _decoded(line, MAX_MESSAGE_BYTES)
    except _NotAReport:
        return None
    return None if report is None else _encoded(report).encode()


def _decoded(message: str | bytes | bytearray, max_bytes: int) -> _Report | None:
    if len(message) > max_bytes:
        raise _NotAReport(f"longer than {max_bytes} bytes")
    try:
        said = message if isinstance(message, str) else message.decode()
        fields = foreign.parse(said) if said.strip(_JSON_SPACE) else None
    except UnicodeDecodeError:
        raise _NotAReport("not valid UTF-8") from None
    except ValueError:
        raise _NotAReport("not valid JSON") from None
    if fields is None and not said.strip(_JSON_SPACE):
        return None
    if not isinstance(fields, dict):
        raise _NotAReport("not one JSON object")
    values: dict[str, Any] = {}
    for key, (read, kind) in _OF_THE_KEP.items():
        try:
            value = foreign.strict(fields.get(key), read)
        except ValueError:
            raise _NotAReport(f'"{key}" is not {kind}') from None
        if value is not None:
            values[key] = value
    if len(error := values.get("error", "")) > MAX_TEXT:
        values["error"] = error[: MAX_TEXT - 1] + "…"
    if not (error or not fields.keys().isdisjoint(_NUMBER_KEYS)):
        raise _NotAReport("no progress in it")
    values.update((key, read(fields.get(key))) for key, read in _OURS.items())
    # JSON escapes can produce lone surrogates.
    return _Report(**{key: _encodable(value) for key, value in values.items()})


def _encoded(report: _Report) -> str:
    """Encode a report as ASCII, so that no encoding or control character can break the line.

    ``progress`` and ``total`` are always written, other fields only if set.
    """
    fields = {
        name: value
        for name, value in zip(_Report._fields, report, strict=True)
        if value or name in _NUMBER_KEYS
    }
    return json.dumps(fields, separators=(",", ":"))


def _news(report: _Report) -> _Report:
    """Return the report without fields that change merely because time passes."""
    sums = report.sums
    if sums is not None and "idle_s" in sums:
        sums = {**sums, "idle_s": 1}
    return report._replace(
        idle_s=min(report.idle_s, 1.0), starts_in_s=min(report.starts_in_s, 1.0), sums=sums
    )


def _reports_on(pull: PullState) -> Iterator[_Report]:
    sums = sums_json(pull.sums) if pull.sums.count else None
    image, error = pull.image[:MAX_TEXT], pull.error[:MAX_TEXT]
    for layer in pull.layers:
        extracted_total = 0 if layer.is_estimated else layer.extracted_total
        yield _Report(
            image=image,
            layer=layer.name,
            progress=layer.progress,
            total=layer.total,
            error=error if layer.phase is Phase.FAILED else "",
            phase=layer.phase,
            queue_position=pull.place,
            extracted=extracted_total if layer.phase is Phase.DONE else layer.extracted,
            extracted_total=extracted_total,
            resumed=layer.resumed,
            started=round(pull.began_s, 3),
            behind=pull.behind[:MAX_TEXT],
            starts_in_s=round(pull.starts_in_s or 0.0, 1),
            pod=pull.pod,
            digest=layer.digest,
            idle_s=round(layer.stalled_s, 1),
            sums=sums,
        )
        sums = None


def _merged(report: _Report, before: PullState | None) -> PullState:
    """Return the state of a pull after a report on a part of it."""
    pull = before or PullState(image=report.image)
    named = _PHASES.get(report.phase)
    layers = pull.layers
    if report.layer or not pull.has_layers:
        old = next((layer for layer in layers if layer.name == report.layer), None)
        layer = _layer_of(report, named, old or LayerState(name=report.layer))
        kept = layers if report.layer == "" or pull.has_layers else ()
        layers = tuple(layer if one is old else one for one in kept)
        layers = layers if old in kept else (*layers, layer)
        if not (
            pull.image or report.layer or report.error or named or layer.total + layer.progress
        ):
            layers = ()
    elif report.error or named is Phase.FAILED or named in COMPLETE:
        layers = tuple(ended(layers, Phase.FAILED if report.error else named or Phase.FAILED))
    has_failed = any(layer.phase is Phase.FAILED for layer in layers)
    return replace(
        pull,
        layers=layers,
        sums=sums_in(report.sums) or pull.sums,
        pods=(report.pod,) if report.pod else pull.pods,
        place=max(report.queue_position, 0),
        behind=report.behind,
        starts_in_s=report.starts_in_s or None,
        error=report.error or (pull.error if has_failed else ""),
        began_s=report.started or pull.began_s,
    )


def _layer_of(report: _Report, named: Phase | None, before: LayerState) -> LayerState:
    progress, total = max(report.progress, 0), max(report.total, 0)
    if report.error and not progress and not total:
        progress, total = before.progress, before.total
    total = max(total, progress) if total else 0
    phase = named
    if report.error:
        phase = Phase.FAILED
    elif named is Phase.DOWNLOADING and 0 < total == progress == before.progress:
        # Its bytes have all arrived before.
        arrived = (Phase.WAITING, Phase.EXTRACTING)
        phase = before.phase if before.phase in arrived else named
    elif named is None and 0 < total == progress:
        phase = Phase.DONE
    elif named is None:
        phase = Phase.DOWNLOADING if progress else Phase.WAITING
    assert phase is not None
    if phase in COMPLETE:
        progress = total = max(progress, total)
    extracted, extracted_total = max(report.extracted, 0), max(report.extracted_total, 0)
    if phase in COMPLETE:
        extracted = max(extracted, before.extracted)
    has_stalled = report.idle_s >= STALLED_S
    return LayerState(
        name=before.name,
        digest=report.digest,
        phase=phase,
        progress=progress,
        total=total,
        resumed=min(max(report.resumed, 0), progress),
        extracted=extracted,
        extracted_total=max(extracted_total, extracted) if extracted_total else 0,
        is_unpacked=bool(before.name) and named not in (None, Phase.PRESENT),
        # A server that names phases also knows what has stalled.
        idle_s=None if named is None and not has_stalled else report.idle_s,
        patience_s=STALLED_S if named is None or has_stalled else math.inf,
    )


def ended(layers: Iterable[LayerState], phase: Phase) -> Iterator[LayerState]:
    """Iterate over the layers of a pull that has ended like this."""
    for layer in layers:
        if layer.phase in COMPLETE:
            yield layer
        elif phase is Phase.FAILED:
            yield replace(layer, phase=phase)
        else:
            yield replace(layer, phase=phase, progress=layer.total or layer.progress)


def _seconds(value: object) -> float:
    seconds = foreign.number(value) or 0.0
    return seconds if seconds < _LONGEST_S else 0.0


def _encodable(value: Any) -> Any:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


_OF_THE_KEP: Final[Mapping[str, tuple[Callable[[object], Any], str]]] = {
    "image": (text, _NAME),
    "layer": (text, _NAME),
    "progress": (foreign.whole, "an integer"),
    "total": (foreign.whole, "an integer"),
    "error": (lambda value: text(value, MAX_MESSAGE_BYTES), "a string"),
}

_OURS: Final[Mapping[str, Callable[[object], Any]]] = {
    **dict.fromkeys(("phase", "behind", "pod", "digest"), text),
    **dict.fromkeys(("queue_position", "extracted", "extracted_total", "resumed"), count),
    **dict.fromkeys(("started", "idle_s", "starts_in_s"), _seconds),
    "sums": lambda value: mapping(value) or None,
}


# Sums


SUMS: Final[Mapping[str, tuple[str, str]]] = {
    "progress": ("integer", "Compressed bytes that have arrived."),
    "total": ("integer", "Compressed bytes in all; 0 while unknown."),
    "done": ("integer", "Layers that have arrived, or images while no layer is known."),
    "count": ("integer", "Layers in all."),
    "failed": ("integer", "Layers that have failed."),
    "resumed": ("integer", "Bytes that an earlier pull has left."),
    "rate": ("number", "Bytes downloaded a second; absent while unknown."),
    "eta_s": ("number", "Seconds until all is unpacked; absent while unknown."),
    "extracted": ("integer", "Bytes unpacked."),
    "extracted_total": ("integer", "Bytes to unpack in all."),
    "is_estimated": ("boolean", "The bytes to unpack in all are an estimate."),
    "share": ("number", "How much of the work is done, from 0 to 1; absent while unknown."),
    "to_come": ("integer", "Images whose layers are not known yet, beside those that are."),
    "idle_s": ("number", "For how long no byte has come; absent unless the pull has stalled."),
    "has_unknown": ("boolean", "The size of a part is not known."),
}
"""The fields of ``Sums`` in JSON, for every output: types (OpenAPI) and meanings."""

_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "integer": count,
    "number": foreign.number,
    "boolean": lambda value: value is True,
}
_NAMES: Final = {key: "stalled_s" if key == "idle_s" else key for key in SUMS}
_DIGITS: Final = 3
_SHARES: Final = 10**4
_EPSILON: Final = 1e-9


def sums_json(sums: Sums) -> dict[str, Any]:
    """Return sums as JSON (``SUMS``); 0 and False are left out, as well as what is unknown."""
    found = {}
    for key, name in _NAMES.items():
        value = getattr(sums, name)
        if value or (value is not None and key in ("rate", "eta_s", "share")):
            found[key] = round(value, _DIGITS) if isinstance(value, float) else value
    if sums.share is not None:  # rounded down, like ``percent``
        found["share"] = math.floor(sums.share * _SHARES + _EPSILON) / _SHARES
    return found


def sums_in(value: object) -> Sums | None:
    """Return the sums in JSON from another program; None if it has none."""
    found = mapping(value)
    if not found:
        return None
    read = {_NAMES[key]: _READERS[kind](found.get(key)) for key, (kind, _) in SUMS.items()}
    share, stalled_s = read["share"], read["stalled_s"] or 0.0
    read["share"] = None if share is None else min(share, 1.0)
    read["stalled_s"] = stalled_s if stalled_s >= STALLED_S else 0.0
    return Sums(**read)


def sums_at_end(sums: Sums, *, is_done: bool) -> Sums:
    """Return the sums of a pull as they are when it has ended."""
    if not is_done:
        return replace(sums, rate=None, eta_s=None, stalled_s=0.0)
    return replace(
        sums,
        progress=sums.total or sums.progress,
        done=sums.count,
        eta_s=0.0 if sums.rate is not None else None,
        extracted=sums.extracted_total,
        share=1.0,
        stalled_s=0.0,
        has_unknown=False,
    )


# ImagePull objects


def status_of(pull: PullState, *, is_moving: bool) -> dict[str, Any]:
    """Return the status of an ImagePull without its phase.

    Args:
        is_moving: it is being pulled or unpacked, so rate and time left are meaningful.
    """
    found: dict[str, Any] = {}
    if pull.began_s:
        found["startTime"] = format_moment(pull.began_s)
    if pull.place:
        found["queuePosition"] = pull.place
    if pull.starts_in_s is not None and pull.place:
        found["startsInSeconds"] = math.ceil(pull.starts_in_s)
    if not (sums := pull.sums).count:
        return found
    found |= {"progressBytes": sums.progress, "totalBytes": sums.total, "sums": sums_json(sums)}
    if sums.extracted_total:
        found |= {
            "extractedBytes": sums.extracted,
            "extractedTotalBytes": sums.extracted_total,
            **({"extractedEstimated": True} if sums.is_estimated else {}),
        }
    if sums.percent is not None:
        found["percent"] = sums.percent
    if is_moving:
        if sums.rate is not None:
            found["bytesPerSecond"] = round(sums.rate)
        if sums.eta_whole_s is not None:
            found["etaSeconds"] = sums.eta_whole_s
        if sums.stalled_s:
            found["stalledSeconds"] = int(sums.stalled_s)
    if layers := [_layer_json(layer) for layer in pull.layers[:MAX_LAYERS] if layer.name]:
        found["layers"] = layers
    return found


def _layer_json(layer: LayerState) -> dict[str, Any]:
    digest = layer.name if ":" in layer.name else layer.digest
    found: dict[str, Any] = {
        "name": escape(layer.name),
        **({"digest": escape(digest)} if digest else {}),
        "phase": layer.phase.value,
        "progressBytes": layer.progress,
        "totalBytes": layer.total,
    }
    if layer.extracted_total and not layer.is_estimated:
        found |= {"extractedBytes": layer.extracted, "extractedTotalBytes": layer.extracted_total}
    return found


def pull_in_status(status: Mapping[str, Any], pull: PullState, phase: Phase) -> PullState:
    """Return ``pull`` with what the status of its ImagePull says, whose phase means ``phase``."""
    is_over = phase in (Phase.DONE, Phase.FAILED)
    layers = [_layer_in(one, phase) for one in mappings(status.get("layers"))]
    if is_over:
        layers = [*ended(layers, phase)]
    if not layers or phase is Phase.PRESENT:
        layers = [replace(_layer_in(status, phase), name="", phase=phase)]
    place = count(status.get("queuePosition"))
    return replace(
        pull,
        layers=tuple(layers),
        sums=Sums() if is_over else sums_in(status.get("sums")) or Sums(),
        place=place,
        starts_in_s=foreign.number(status.get("startsInSeconds")) if place else None,
        began_s=moment(status.get("startTime")),
    )


def _layer_in(part: Mapping[str, Any], phase: Phase) -> LayerState:
    digest, name = text(part.get("digest")), text(part.get("name"))
    report = _Report(
        progress=count(part.get("progressBytes")),
        total=count(part.get("totalBytes")),
        extracted=count(part.get("extractedBytes")),
        extracted_total=count(part.get("extractedTotalBytes")),
        digest=digest if name and name != digest else "",
    )
    named = _PHASES.get(text(part.get("phase")), phase)
    return _layer_of(report, named, LayerState(name=name or digest))


# The line of a pull limiter


def running_fields(pull: PullState) -> dict[str, Any]:
    """Return the fields of a running pull in the line, null where unknown."""
    sums = pull.sums
    eta_s, stalled_s = sums.eta_whole_s, sums.stalled_s
    return {
        "bytes": sums.progress if sums.count else None,
        "total": sums.total or None,
        "percent": sums.percent,
        "rate": None if sums.rate is None else round(sums.rate),
        "eta": None if eta_s is None else format_duration(eta_s),
        "unpacking": sums.unpacking or None,
        "sums": sums_json(sums) if sums.count else None,
        "stalled": f"no data for {duration_in_words(int(stalled_s))}" if stalled_s else None,
    }


def pulls_in_line(status: Mapping[str, Any]) -> list[PullState]:
    """Return all pulls in the status of a pull limiter, one for each pod that waits for it."""
    found: list[PullState] = []
    by_number: dict[int, PullState] = {}
    for one in mappings(status.get("running")):
        pull = PullState(
            image=text(one.get("image")),
            pods=_pods_in(one),
            sums=sums_in(one.get("sums")) or Sums(),
            began_s=moment(one.get("since")),
        )
        by_number[count(one.get("pull"))] = pull
        found.append(pull)
    ahead = [pull.pod or pull.image for pull in found]
    first = ahead[0] if len(ahead) == 1 else "any running pull"
    for one in mappings(status.get("waiting")):
        starts_in = text(one.get("startsIn"))
        pull = PullState(
            image=text(one.get("image")),
            pods=_pods_in(one),
            place=count(one.get("place")),
            behind=text(one.get("behindPod")) or text(one.get("behind")) or first,
            starts_in_s=parse_duration(starts_in) if starts_in else None,
            is_begun=False,
        )
        by_number[count(one.get("pull"))] = pull
        found.append(pull)
    for one in mappings(status.get("joined")):
        if (shared := by_number.get(count(one.get("pull")))) is not None:
            found.append(replace(shared, image=text(one.get("image")), pods=_pods_in(one)))
    return found


def _pods_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    pod = text(row.get("pod"))
    return (pod,) if pod else ()
