"""Pulls as JSON, written and read only here: progress messages, ImagePull objects, the line. Pure.

* A *message* of the progress stream (KEP-5334) is one JSON object about a layer, an image or a pod.
  The KEP's keys are ``image``, ``layer``, ``progress``, ``total`` and ``error``. pycrictl
  adds keys of its own, which clients that implement only the KEP ignore. Over a WebSocket every
  message has its own frame, over plain HTTP its own line. A message that names neither an image
  nor a layer, and has no bytes, says that nothing is being pulled.
* The *status* of an ImagePull has the sums, and fields for people, which its schema explains.
* The *line* is the status of a proxy's pull limiter (``proxy.operators``).

A server that sends only the KEP's keys is interpreted here, and nowhere else:

* A report with an error means ``failed``, whatever phase it names. Otherwise a named phase applies.
  Without one, a known total that is reached means ``done``, any bytes ``downloading``, and no bytes
  ``waiting``. Only the latest report counts: one without an error revives a failed layer. A layer
  whose bytes have all arrived never goes back to ``downloading``.
* A total of 0 or less is unknown; progress below 0 is 0; a total below the progress is raised.
  A completed layer's progress is its total. An error without numbers keeps the earlier numbers.
* Once layers are known, a report on the whole image counts only if it ends all of them.
* pycrictl's keys with values of another type are ignored: another runtime may use them otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pycrictl.base import foreign
from pycrictl.base.foreign import count, mapping, mappings, moment, number, text
from pycrictl.base.units import (
    duration_in_words,
    escape,
    format_duration,
    format_moment,
    parse_duration,
    quote,
)
from pycrictl.pulls.state import COMPLETE, STALLED_S, LayerState, Phase, PullState, Sums

WHOLE_NODE: Final = "*"
"""The pod sandbox ID, which KEP-5334 requires, for all pods of the node and pulls without a pod."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest message that is accepted by default."""

MAX_TEXT: Final = foreign.MAX_CHARS
"""Longest image reference, layer digest or error text, in characters; others are truncated."""

MAX_LAYERS: Final = 200
"""The maximum number of layers in an ImagePull object."""

NOTHING: Final = '{"progress":0,"total":0}'
"""The message that nothing is being pulled."""

_LONGEST_S: Final = 1e11
_EXCERPT: Final = 60
_PHASES: Final[dict[str, Phase]] = {phase.value: phase for phase in Phase}
_AGAIN_S: Final = 5.0
"""How often the time until a pull starts, which always changes, is sent if nothing else changes."""


# Messages of the progress stream


class MessageReader:
    """Turns messages into states of pulls, and skips invalid messages.

    Use ``receive_message`` for messages with boundaries of their own (WebSocket), or
    ``receive_data`` and ``receive_eof`` for a stream of lines. No input makes it raise. It buffers
    at most ``max_message_bytes`` of a line; the rest of a longer line is read as another line.

    Args:
        known: the states of all pulls so far, by name. A message has only a part of a state,
            such as one layer; the caller stores each result here before it takes the next one.

    Attributes:
        first_bad: a description of the first skipped message, in one printable line.
    """

    def __init__(
        self, known: Mapping[str, PullState], *, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.first_bad: str | None = None
        self._known = known
        self._max_message_bytes = max_message_bytes
        self._line = b""

    def receive_message(self, message: str | bytes | bytearray) -> PullState | None:
        """Decode one message; None if it is blank or bad."""
        said = message if isinstance(message, str) else message.decode(errors="replace")
        if not said.strip():
            return None
        try:
            if len(message) > self._max_message_bytes:
                raise ValueError(f"longer than {self._max_message_bytes} bytes")
            fields = foreign.parsed(said)
            numbers = [fields[key] for key in ("progress", "total") if key in fields]
            is_wrong = any(foreign.whole(value) != value for value in numbers if value is not None)
            if is_wrong or not (numbers or text(fields.get("error"))):
                raise ValueError("no progress in it")
        except ValueError as exc:
            self.first_bad = self.first_bad or f"{exc}: {quote(said[:_EXCERPT], _EXCERPT)}"
            return None
        return _merged(fields, self._known)

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
        return self.receive_data(b"\n")


class MessageWriter:
    """Turns states of pulls into messages: all at first, and then those that have changed.

    Attributes:
        last: the last message, to be repeated if there is nothing to say.
    """

    def __init__(self) -> None:
        self.last = ""
        self._sent: dict[tuple[str, str], dict[str, Any]] = {}

    def changes(self, pulls: Iterable[PullState]) -> list[str]:
        """Return the messages that bring a reader up to date, each one line of ASCII without LF."""
        lines = []
        for pull in pulls:
            sums = sums_json(pull.sums) if pull.sums.count else {}
            for layer in pull.layers:
                fields = fields_of(pull, layer)
                if sums:
                    fields["sums"], sums = sums, {}
                news = {
                    **fields,
                    "idle_s": "idle_s" in fields,
                    "starts_in_s": (pull.starts_in_s or 0.0) // _AGAIN_S,
                }
                if "stalled_s" in fields.get("sums", {}):
                    news["sums"] = {**fields["sums"], "stalled_s": None}
                key = pull.image, layer.name
                if self._sent.get(key) != news:
                    self._sent[key] = news
                    lines.append(json.dumps(fields, separators=(",", ":")))
        if lines:
            self.last = lines[-1]
        return lines


def fields_of(pull: PullState, layer: LayerState) -> dict[str, Any]:
    """Return the fields of a message that are not empty, and always the KEP's numbers."""
    extracted_total = 0 if layer.is_estimated else layer.extracted_total
    fields = {
        "image": pull.image[:MAX_TEXT],
        "layer": layer.name,
        "progress": layer.progress,
        "total": layer.total,
        "error": pull.error[:MAX_TEXT] if layer.phase is Phase.FAILED else "",
        "phase": layer.phase.value,
        "queue_position": pull.place,
        "extracted": extracted_total if layer.phase is Phase.DONE else layer.extracted,
        "extracted_total": extracted_total,
        "resumed": layer.resumed,
        "started": round(pull.began_s, 3),
        "behind": pull.behind[:MAX_TEXT],
        "starts_in_s": round(pull.starts_in_s or 0.0, 1),
        "pod": pull.pod,
        "digest": layer.digest,
        "idle_s": round(layer.stalled_s, 1),
    }
    return {key: value for key, value in fields.items() if value or key in ("progress", "total")}


def _merged(said: Mapping[str, Any], known: Mapping[str, PullState]) -> PullState:
    """Return the state of a pull after a message about a part of it."""
    image, name, error = (_text(said.get(key)) for key in ("image", "layer", "error"))
    pull = known.get(image) or PullState(image=image)
    named = _PHASES.get(text(said.get("phase")))
    layers = pull.layers
    if name or not pull.has_layers:
        old = next((layer for layer in layers if layer.name == name), None)
        layer = _layer_of(said, named, old or LayerState(name=name))
        kept = layers if name == "" or pull.has_layers else ()
        layers = tuple(layer if layer_kept is old else layer_kept for layer_kept in kept)
        layers = layers if old in kept else (*layers, layer)
        if not (image or name or error or named or layer.total + layer.progress):
            layers = ()
    elif error or named is Phase.FAILED or named in COMPLETE:
        layers = tuple(ended(layers, Phase.FAILED if error else named or Phase.FAILED))
    has_failed = any(layer.phase is Phase.FAILED for layer in layers)
    pod = _text(said.get("pod"))
    return replace(
        pull,
        layers=layers,
        sums=sums_in(said.get("sums")) or pull.sums,
        pods=(pod,) if pod else pull.pods,
        place=count(said.get("queue_position")),
        behind=_text(said.get("behind")),
        starts_in_s=_seconds(said.get("starts_in_s")) or None,
        error=error or (pull.error if has_failed else ""),
        began_s=_seconds(said.get("started")) or pull.began_s,
    )


def _layer_of(said: Mapping[str, Any], named: Phase | None, before: LayerState) -> LayerState:
    progress, total = (max(foreign.whole(said.get(key)), 0) for key in ("progress", "total"))
    if has_failed := bool(text(said.get("error"))):
        progress, total = (
            (progress, total) if progress or total else (before.progress, before.total)
        )
    total = max(total, progress) if total else 0
    phase = named or (Phase.DOWNLOADING if progress else Phase.WAITING)
    if has_failed:
        phase = Phase.FAILED
    elif named is None and 0 < total == progress:
        phase = Phase.DONE
    elif named is Phase.DOWNLOADING and 0 < total == progress == before.progress:
        # All its bytes had arrived before.
        phase = before.phase if before.phase in (Phase.WAITING, Phase.EXTRACTING) else named
    extracted, extracted_total = count(said.get("extracted")), count(said.get("extracted_total"))
    if phase in COMPLETE:
        progress = total = max(progress, total)
        extracted = max(extracted, before.extracted)
    idle_s = _seconds(said.get("idle_s"))
    # A server that names phases also knows what has stalled.
    has_stalled = idle_s >= STALLED_S
    return LayerState(
        name=before.name,
        digest=_text(said.get("digest")),
        phase=phase,
        progress=progress,
        total=total,
        resumed=min(count(said.get("resumed")), progress),
        extracted=extracted,
        extracted_total=max(extracted_total, extracted) if extracted_total else 0,
        is_unpacked=bool(before.name) and named not in (None, Phase.PRESENT),
        idle_s=None if named is None and not has_stalled else idle_s,
        patience_s=STALLED_S if named is None or has_stalled else math.inf,
    )


def ended(layers: Iterable[LayerState], phase: Phase) -> Iterator[LayerState]:
    """Iterate over the layers of a pull that has ended in this phase."""
    for layer in layers:
        if layer.phase in COMPLETE:
            yield layer
        elif phase is Phase.FAILED:
            yield replace(layer, phase=phase)
        else:
            yield replace(layer, phase=phase, progress=layer.total or layer.progress)


def _seconds(value: object) -> float:
    seconds = number(value) or 0.0
    return seconds if seconds < _LONGEST_S else 0.0


def _text(value: object) -> str:
    """Return a text without lone surrogates, which JSON escapes can produce."""
    return text(value).encode(errors="replace").decode()


# Sums


SUMS: Final[Mapping[str, str]] = {
    field.name: {"bool": "boolean", "int": "integer"}.get(str(field.type), "number")
    for field in dataclasses.fields(Sums)
}
"""The fields of ``Sums`` and their types in JSON (OpenAPI)."""

_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "integer": count,
    "number": number,
    "boolean": lambda value: value is True,
}
_SHARES: Final = 10**4
_EPSILON: Final = 1e-9


def sums_json(sums: Sums) -> dict[str, Any]:
    """Return sums as JSON; 0 and False are left out, as well as what is unknown."""
    document = {}
    for name in SUMS:
        value = getattr(sums, name)
        if value or (value is not None and name in ("rate", "eta_s", "share")):
            document[name] = round(value, 3) if isinstance(value, float) else value
    if sums.share is not None:  # rounded down, like ``percent``
        document["share"] = math.floor(sums.share * _SHARES + _EPSILON) / _SHARES
    return document


def sums_in(value: object) -> Sums | None:
    """Return the sums in JSON from another program; None if it has none."""
    if not (document := mapping(value)):
        return None
    read = {name: _READERS[kind](document.get(name)) for name, kind in SUMS.items()}
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
        is_moving: whether the image is being pulled or unpacked, so it has a rate and a time left.
    """
    status: dict[str, Any] = {}
    if pull.began_s:
        status["startTime"] = format_moment(pull.began_s)
    if pull.place:
        status["queuePosition"] = pull.place
    if pull.starts_in_s is not None and pull.place:
        status["startsInSeconds"] = math.ceil(pull.starts_in_s)
    if not (sums := pull.sums).count:
        return status
    status |= {"progressBytes": sums.progress, "totalBytes": sums.total, "sums": sums_json(sums)}
    if sums.extracted_total:
        status |= {
            "extractedBytes": sums.extracted,
            "extractedTotalBytes": sums.extracted_total,
            **({"extractedEstimated": True} if sums.is_estimated else {}),
        }
    if sums.percent is not None:
        status["percent"] = sums.percent
    if is_moving:
        if sums.rate is not None:
            status["bytesPerSecond"] = round(sums.rate)
        if sums.eta_whole_s is not None:
            status["etaSeconds"] = sums.eta_whole_s
        if sums.stalled_s:
            status["stalledSeconds"] = int(sums.stalled_s)
    if layers := [_layer_json(layer) for layer in pull.layers[:MAX_LAYERS] if layer.name]:
        status["layers"] = layers
    return status


def _layer_json(layer: LayerState) -> dict[str, Any]:
    digest = layer.name if ":" in layer.name else layer.digest
    document: dict[str, Any] = {
        "name": escape(layer.name),
        **({"digest": escape(digest)} if digest else {}),
        "phase": layer.phase.value,
        "progressBytes": layer.progress,
        "totalBytes": layer.total,
    }
    if layer.extracted_total and not layer.is_estimated:
        document |= {
            "extractedBytes": layer.extracted,
            "extractedTotalBytes": layer.extracted_total,
        }
    return document


def pull_in_status(status: Mapping[str, Any], pull: PullState, phase: Phase) -> PullState:
    """Return ``pull`` as its ImagePull's status describes it; ``phase`` is that of the status."""
    is_over = phase in (Phase.DONE, Phase.FAILED)
    sums = Sums() if is_over else sums_in(status.get("sums")) or Sums()
    layers = [_layer_in(layer, phase, sums) for layer in mappings(status.get("layers"))]
    if is_over:
        layers = [*ended(layers, phase)]
    if not layers or phase is Phase.PRESENT:
        layers = [replace(_layer_in(status, phase, sums), name="", phase=phase)]
    place = count(status.get("queuePosition"))
    return replace(
        pull,
        layers=tuple(layers),
        sums=sums,
        place=place,
        starts_in_s=number(status.get("startsInSeconds")) if place else None,
        began_s=moment(status.get("startTime")),
    )


def _layer_in(part: Mapping[str, Any], phase: Phase, sums: Sums) -> LayerState:
    """Return a layer of an ImagePull; if the pull has stalled, so have all that are downloading."""
    named = _PHASES.get(text(part.get("phase")), phase)
    digest, name = text(part.get("digest")), text(part.get("name"))
    said = {
        "progress": part.get("progressBytes"),
        "total": part.get("totalBytes"),
        "extracted": part.get("extractedBytes"),
        "extracted_total": part.get("extractedTotalBytes"),
        "digest": digest if name and name != digest else "",
        "idle_s": sums.stalled_s if named is Phase.DOWNLOADING else 0.0,
    }
    return _layer_of(said, named, LayerState(name=name or digest))


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
    pulls: list[PullState] = []
    by_number: dict[int, PullState] = {}
    for item in mappings(status.get("running")):
        pull = PullState(
            image=text(item.get("image")),
            pods=_pods_in(item),
            sums=sums_in(item.get("sums")) or Sums(),
            began_s=moment(item.get("since")),
        )
        by_number[count(item.get("pull"))] = pull
        pulls.append(pull)
    ahead = [pull.pod or pull.image for pull in pulls]
    first = ahead[0] if len(ahead) == 1 else "any running pull"
    for item in mappings(status.get("waiting")):
        starts_in = text(item.get("startsIn"))
        pull = PullState(
            image=text(item.get("image")),
            pods=_pods_in(item),
            place=count(item.get("place")),
            behind=text(item.get("behindPod")) or text(item.get("behind")) or first,
            starts_in_s=parse_duration(starts_in) if starts_in else None,
            is_begun=False,
        )
        by_number[count(item.get("pull"))] = pull
        pulls.append(pull)
    for item in mappings(status.get("joined")):
        if (shared := by_number.get(count(item.get("pull")))) is not None:
            pulls.append(replace(shared, image=text(item.get("image")), pods=_pods_in(item)))
    return pulls


def _pods_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    pod = text(row.get("pod"))
    return (pod,) if pod else ()
