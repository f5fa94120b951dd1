"""Diagnoses of a pod or a node as text for people. Pure."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TextIO

from pycrictl.base.units import age_in_words, escape, plural, readable
from pycrictl.show.list_views import SHORT_ID_CHARS
from pycrictl.show.records import records_of
from pycrictl.show.render import Tone, painted

JOURNAL_LINES: Final = 4
MOST_PODS: Final = 5
"""How many pods of a node are named."""

_JOURNAL_CHARS: Final = 160
_LABEL_CHARS: Final = 13

_QUIET: Final = (
    r'^I\d{4} |\blevel="?(?:info|debug)\b|msg="cleaning up after shim disconnected"'
    r'|error="reading from a closed fifo"'
)
"""Routine messages of containerd (logrus) and the kubelet (klog), also for a container's end."""

_FIELDS: Final = r'\b(?:msg|error)=("(?:[^"\\]|\\.)*")'
_KLOG: Final = r"^[EWF]\d{4} [\d:.]+ +\d+ [^] ]+\] "
_TONES: Final[Mapping[str, Tone]] = {"serious": "bad", "warning": "warning", "note": ""}
_SEVERITIES: Final = (*_TONES,)
"""The most severe first."""

_COMMAND: Final = r"'pycrictl [^']*'"


class TextRow(NamedTuple):
    """A label and a text beside it.

    ``tone`` colours the label, or else the first word. An indent of 0 means no label.
    """

    label: str
    text: str
    indent: int = _LABEL_CHARS
    tone: Tone = ""


def write_pod(
    document: Mapping[str, Any], out: TextIO, columns: int = 0, *, is_coloured: bool = False
) -> None:
    """Write the most likely cause, what to do next, and the facts; for a healthy pod, one line."""
    cause = document["cause"]
    tone = "" if document["healthy"] else _TONES[cause["severity"]]
    rows = [TextRow("", f"{document['pod'] or document['subject']} {cause['text']}", 0, tone)]
    if not document["healthy"] and cause["advice"]:
        rows.append(TextRow("next", cause["advice"]))
    rows += [TextRow("also", _alone(one["text"])) for one in document["also"]]
    if not document["healthy"] and document["pod"]:
        rows += [TextRow("", "", 0), *_rows(document["facts"], cause["text"])]
    _write(rows, out, columns, is_coloured)


def write_pods(
    document: Mapping[str, Any], out: TextIO, columns: int = 0, *, is_coloured: bool = False
) -> None:
    """Write a line for each cause: below one of a node, the pods that it concerns."""
    if (records := records_of(out)) is not None:
        return records.put("pods", document)
    rows = []
    shared: dict[str, list[str]] = {
        one["subject"]: [] for one in document["findings"] if one["pod"] is None
    }
    for one in document["findings"]:
        if one["pod"] is not None and one["subject"] in shared:
            shared[one["subject"]].append(one["pod"])
    for one in document["findings"]:
        if one["pod"] is None or one["subject"] not in shared:
            rows.append(_cause_row(f"{one['pod'] or one['subject']} ", one["cause"]))
            if pods := shared.get(one["subject"], ()):
                more = f" and {len(pods) - MOST_PODS} more" if len(pods) > MOST_PODS else ""
                names = f"{', '.join(pods[:MOST_PODS])}{more}"
                rows.append(TextRow("", f"{plural(len(pods), 'pod')}: {names}", 2))
    rows += [_cause_row("", one) for one in document["node"]]
    if not rows:
        count = plural(document["pods"], "pod")
        rows.append(TextRow("", f"{count}: nothing is wrong as far as can be seen", 0))
    rows += [
        TextRow("", f"unavailable: {one['source']}: {one['reason']}", 0)
        for one in document["missing"]
    ]
    _write(rows, out, columns, is_coloured)


def _cause_row(whose: str, cause: Mapping[str, Any]) -> TextRow:
    advice = f"; next: {cause['advice']}" if cause["advice"] else ""
    return TextRow("", f"{whose}{cause['text']}{advice}", 0, _TONES[cause["severity"]])


def write_node(
    document: Mapping[str, Any], out: TextIO, columns: int = 0, *, is_coloured: bool = False
) -> None:
    if (records := records_of(out)) is not None:
        return records.put("node", document)
    rows = [*_finding_rows(("", finding) for finding in document["findings"])]
    if not rows:
        unseen = ", ".join(one["source"] for one in document["facts"]["missing"])
        text = f"nothing is wrong with what could be seen; not seen: {unseen}"
        rows.append(TextRow("", text if unseen else "nothing is wrong with this node", 0))
    _write([*rows, TextRow("", "", 0), *_node_rows(document["facts"])], out, columns, is_coloured)


def _finding_rows(findings: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[TextRow]:
    """Iterate over the rows of findings, each with whose it is, if there are several hosts."""
    for whose, finding in findings:
        severity = finding["severity"]
        yield TextRow(severity.upper(), f"{whose}{finding['text']}", tone=_TONES[severity])
        if finding["advice"]:
            yield TextRow("", f"do: {finding['advice']}")


def pods_of_hosts(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the surveys of several hosts as one, most severe first, each finding with its host."""
    pods, nodes, missing = [], [], []
    for host, document in documents.items():
        pods += [{**one, "pod": f"{host}: {one['pod']}"} for one in document["findings"]]
        nodes += [{**one, "text": f"{host}: {one['text']}"} for one in document["node"]]
        missing += [{**one, "source": f"{host}: {one['source']}"} for one in document["missing"]]
    return {
        "findings": sorted(pods, key=lambda one: _SEVERITIES.index(one["cause"]["severity"])),
        "node": sorted(nodes, key=lambda one: _SEVERITIES.index(one["severity"])),
        "pods": sum(document["pods"] for document in documents.values()),
        "missing": missing,
    }


def write_nodes(
    documents: Mapping[str, Mapping[str, Any]], out: TextIO, columns: int, *, is_coloured: bool
) -> None:
    """Write the findings of several hosts, most severe first, each with its host."""
    found = [
        (f"{host}: ", finding)
        for host, document in documents.items()
        for finding in document["findings"]
    ]
    found.sort(key=lambda pair: _SEVERITIES.index(pair[1]["severity"]))
    rows = [*_finding_rows(found)]
    for host, document in documents.items():
        unseen = ", ".join(one["source"] for one in document["facts"]["missing"])
        if unseen:
            rows.append(TextRow("Unavailable", f"{host}: {unseen}"))
        if not document["findings"]:
            rows.append(TextRow("", f"{host}: nothing is wrong with what could be seen"))
    _write(rows, out, columns, is_coloured)


def _write(rows: Iterable[TextRow], out: TextIO, columns: int, is_coloured: bool) -> None:
    """Write rows, and wrap their text to ``columns`` unless that is 0.

    Only the terminal breaks words and commands that are too long, so they can still be copied.
    """
    shown: list[str] = []
    for label, text, indent, tone in rows:
        line = label.ljust(indent) + escape(readable(text))
        lines = [line]
        if columns and len(line) > columns:
            lines = textwrap.wrap(
                re.sub(_COMMAND, lambda found: found[0].replace(" ", "\0"), line[indent:]),
                columns,
                initial_indent=label.ljust(indent),
                subsequent_indent=" " * (indent or 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
        if tone and is_coloured:
            size = len(label) or text.find(" ")
            lines[0] = painted(lines[0][:size], tone) + lines[0][size:]
        shown += lines
    out.write("".join(f"{line}\n" for line in shown).replace("\0", " "))


def _alone(text: str) -> str:
    """Return the text of a further finding, without an initial "is not running"."""
    found = re.match(r"is (?:not running|waiting)(?:: |, and )", text)
    return text[found.end() :] if found else f"it {text}"


def _node_rows(facts: Mapping[str, Any]) -> Iterator[TextRow]:
    if facts["endpoint"]:
        yield TextRow("Runtime", f"{facts['runtime'] or 'unknown'} at {facts['endpoint']}")
    if facts["kubelet_config"]:
        limit = facts["kubelet_limit"]
        pulls = plural(limit, "pull") if limit else "any number of pulls"
        yield TextRow("Kubelet", f"{pulls} at once; {facts['kubelet_config']}")
    if facts["proxy"]:
        yield TextRow("Proxy", f"{facts['proxy']} in front of {facts['proxy_upstream']}")
    for one in facts["disks"]:
        yield TextRow("Disk", f"{one['path']} ({one['use']}): {one['text']}")
    for route in facts["routes"]:
        mirror = f", mirror of {route['registry']}" if route["is_mirror"] else ""
        proxy = f", through the proxy {route['proxy']}" if route["proxy"] else ""
        origin = f" ({route['origin']})" if route["origin"] else ""
        used = f", with the credentials of {route['credentials']}" if route["credentials"] else ""
        yield TextRow("Registry", f"{route['url']}{mirror}{origin}{proxy}{used}")
        marks = {True: "ok", False: "FAILS", None: "-"}
        for step in route["steps"]:
            name = f"{step['name']:<10}  {marks[step['is_good']]:<5}  "
            yield TextRow(" " * _LABEL_CHARS + name, step["text"], _LABEL_CHARS + len(name))
    for one in facts["missing"]:
        yield TextRow("Unavailable", f"{one['source']}: {one['reason']}")


def _rows(facts: Mapping[str, Any], cause: str) -> Iterator[TextRow]:
    now_s = facts["now_s"]
    yield TextRow("Sandbox", _sandbox(facts["sandbox"], now_s))
    for one in facts["containers"]:
        yield TextRow("Container", _container(one, now_s))
        if one["message"]:
            yield TextRow("", " / ".join(one["message"].split("\n")).strip(" /"))
        for line in one["lines"]:
            yield TextRow("", f"| {line}")
    for one in facts["images"]:
        yield TextRow("Image", _image(one, cause))
    for one in facts["problems"]:
        yield TextRow("Runtime", f"{one['condition']} does not hold: {one['message']}")
    for one in facts["disks"]:
        yield TextRow("Disk", f"{one['path']} ({one['use']}): {one['text']}")
    notable = [one for one in facts["journal"] if not re.search(_QUIET, one["message"])]
    said = {_said(one["message"]): one for one in notable}  # the last of equal ones
    for message, one in sorted(said.items(), key=lambda pair: pair[1]["at_s"])[-JOURNAL_LINES:]:
        when = time.strftime("%H:%M:%S", time.localtime(one["at_s"]))
        if len(message) > _JOURNAL_CHARS:  # the cause is at the end
            message = "…" + message[-_JOURNAL_CHARS:]
        is_event = one["unit"] == "event"
        source = "" if is_event else f" {one['unit']}"
        yield TextRow("Event" if is_event else "Journal", f"{when}{source}: {message}")
    for one in facts["missing"]:
        yield TextRow("Unavailable", f"{one['source']}: {one['reason']}")


def _said(message: str) -> str:
    """Return the message of a journal line, without log prefixes and other noise."""
    if fields := re.findall(_FIELDS, message):
        message = ": ".join(map(_unquoted, fields))
    return readable(re.sub(_KLOG, "", message))


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _sandbox(one: Mapping[str, Any] | None, now_s: float) -> str:
    if one is None:
        return "none"
    state = "ready" if one["is_ready"] else "not ready"
    age = f", created {age_in_words(now_s - one['created_s'])} ago" if one["created_s"] else ""
    address = f", {one['address']}" if one["address"] else ""
    name = f"{one['id'][:SHORT_ID_CHARS]}, " if one["id"] else ""
    return f"{name}{state}{age}{address}"


def _container(one: Mapping[str, Any], now_s: float) -> str:
    parts = [one["name"]]
    if one["id"]:
        parts.append(one["id"][:SHORT_ID_CHARS])
    state = one["state"] or "not created yet"
    if one["state"] == "running":
        state += f" for {age_in_words(now_s - one['started_s'])}"
    elif one["state"] == "exited":
        reason = f", {one['reason']}" if one["reason"] else ""
        state += f" with {one['exit_code']}{reason}, {age_in_words(now_s - one['finished_s'])} ago"
    parts.append(state)
    if one["restarts"]:
        parts.append(plural(one["restarts"], "restart"))
    if one["waiting"]:
        parts.append(f"the kubelet says {one['waiting']}")
    return ", ".join(parts)


def _image(one: Mapping[str, Any], cause: str) -> str:
    if one["pull"] is not None:
        text = one["pull"]["text"]
    elif one["failure"]:
        is_told = one["failure"] in cause  # the first line has it in full
        text = "failed" if is_told else f"failed: {one['failure']}"
        if one["next_try"] and not is_told:
            text += f"; {one['next_try']}"
    else:
        text = {True: "present", False: "not on the node", None: "unknown"}[one["is_present"]]
    says = f" (the kubelet says {one['says']})" if one["says"] else ""
    return f"{one['reference']}: {text}{says}"
