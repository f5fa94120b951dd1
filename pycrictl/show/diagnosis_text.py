"""Diagnoses of a pod or a node as text for people. Pure."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TextIO

from pycrictl.base.units import SHORT_ID_CHARS, age_in_words, escape, plural, readable
from pycrictl.show.records import records_of
from pycrictl.show.render import Tone, painted

JOURNAL_LINES: Final = 4
MOST_PODS: Final = 5
"""The maximum number of a node's pods that are named."""

_JOURNAL_CHARS: Final = 160
_LABEL_CHARS: Final = 13

_QUIET: Final = (
    r'^I\d{4} |\blevel="?(?:info|debug)\b|msg="cleaning up after shim disconnected"'
    r'|error="reading from a closed fifo"'
)
"""Routine messages of containerd (logrus) and the kubelet (klog), also when a container ends."""

_FIELDS: Final = r'\b(?:msg|error)=("(?:[^"\\]|\\.)*")'
_KLOG: Final = r"^[EWF]\d{4} [\d:.]+ +\d+ [^] ]+\] "
_TONES: Final[Mapping[str, Tone]] = {"serious": "bad", "warning": "warning", "note": ""}
_SEVERITIES: Final = (*_TONES,)
"""The most severe first."""

_COMMAND: Final = r"'pycrictl [^']*'"


class TextRow(NamedTuple):
    """A label and a text beside it.

    ``tone`` colours the label or, without one, the text's first word. An indent of 0: no label.
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
    rows += [TextRow("also", _alone(finding["text"])) for finding in document["also"]]
    if not document["healthy"] and document["pod"]:
        rows += [TextRow("", "", 0), *_rows(document["facts"], cause["text"])]
    _write(rows, out, columns, is_coloured)


def write_pods(
    document: Mapping[str, Any], out: TextIO, columns: int = 0, *, is_coloured: bool = False
) -> None:
    """Write a line for each cause, and below the cause of a node, the pods that it concerns."""
    if (records := records_of(out)) is not None:
        return records.put("pods", document)
    rows = []
    shared: dict[str, list[str]] = {
        finding["subject"]: [] for finding in document["findings"] if finding["pod"] is None
    }
    for finding in document["findings"]:
        if finding["pod"] is not None and finding["subject"] in shared:
            shared[finding["subject"]].append(finding["pod"])
    for finding in document["findings"]:
        if finding["pod"] is None or finding["subject"] not in shared:
            rows.append(_cause_row(f"{finding['pod'] or finding['subject']} ", finding["cause"]))
            if pods := shared.get(finding["subject"], ()):
                more = f" and {len(pods) - MOST_PODS} more" if len(pods) > MOST_PODS else ""
                names = f"{', '.join(pods[:MOST_PODS])}{more}"
                rows.append(TextRow("", f"{plural(len(pods), 'pod')}: {names}", 2))
    rows += [_cause_row("", finding) for finding in document["node"]]
    if not rows:
        count = plural(document["pods"], "pod")
        rows.append(TextRow("", f"{count}: no problem was found in the available sources", 0))
    rows += [
        TextRow("", f"unavailable: {finding['source']}: {finding['reason']}", 0)
        for finding in document["missing"]
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
        unseen = ", ".join(finding["source"] for finding in document["facts"]["missing"])
        text = f"no problem was found; unavailable: {unseen}"
        rows.append(TextRow("", text if unseen else "no problem was found on this node", 0))
    _write([*rows, TextRow("", "", 0), *_node_rows(document["facts"])], out, columns, is_coloured)


def _finding_rows(findings: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[TextRow]:
    """Iterate over the rows of findings, each with its host, or an empty text, in front."""
    for whose, finding in findings:
        severity = finding["severity"]
        yield TextRow(severity.upper(), f"{whose}{finding['text']}", tone=_TONES[severity])
        if finding["advice"]:
            yield TextRow("", f"do: {finding['advice']}")


def pods_of_hosts(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the surveys of several hosts as one, most severe first, each finding with its host."""
    findings, missing = [], []
    for host, document in documents.items():
        for item in document["findings"]:
            pod, subject = item["pod"] and f"{host}: {item['pod']}", f"{host}: {item['subject']}"
            findings.append({**item, "pod": pod, "subject": subject})
        findings += [{"pod": f"{host}:", "subject": "", "cause": item} for item in document["node"]]
        missing += [{**item, "source": f"{host}: {item['source']}"} for item in document["missing"]]
    return {
        "findings": sorted(findings, key=lambda item: _SEVERITIES.index(item["cause"]["severity"])),
        "node": [],
        "pods": sum(document["pods"] for document in documents.values()),
        "missing": missing,
    }


def write_nodes(
    documents: Mapping[str, Mapping[str, Any]], out: TextIO, columns: int, *, is_coloured: bool
) -> None:
    """Write the findings of several hosts, most severe first, each with its host."""
    findings = [
        (f"{host}: ", finding)
        for host, document in documents.items()
        for finding in document["findings"]
    ]
    findings.sort(key=lambda pair: _SEVERITIES.index(pair[1]["severity"]))
    rows = [*_finding_rows(findings)]
    for host, document in documents.items():
        unseen = ", ".join(finding["source"] for finding in document["facts"]["missing"])
        if unseen:
            rows.append(TextRow("Unavailable", f"{host}: {unseen}"))
        if not document["findings"]:
            rows.append(TextRow("", f"{host}: no problem was found in the available sources"))
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
                re.sub(_COMMAND, lambda match: match[0].replace(" ", "\0"), line[indent:]),
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
    match = re.match(r"is (?:not running|waiting)(?:: |, and )", text)
    return text[match.end() :] if match else f"it {text}"


def _node_rows(facts: Mapping[str, Any]) -> Iterator[TextRow]:
    if facts["endpoint"]:
        yield TextRow("Runtime", f"{facts['runtime'] or 'unknown'} at {facts['endpoint']}")
    if facts["kubelet_config"]:
        limit = facts["kubelet_limit"]
        pulls = plural(limit, "pull") if limit else "any number of pulls"
        yield TextRow("Kubelet", f"{pulls} at once; {facts['kubelet_config']}")
    if facts["proxy"]:
        yield TextRow("Proxy", f"{facts['proxy']} in front of {facts['proxy_upstream']}")
    for item in facts["disks"]:
        yield TextRow("Disk", f"{item['path']} ({item['use']}): {item['text']}")
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
    for item in facts["missing"]:
        yield TextRow("Unavailable", f"{item['source']}: {item['reason']}")


def _rows(facts: Mapping[str, Any], cause: str) -> Iterator[TextRow]:
    now_s = facts["now_s"]
    yield TextRow("Sandbox", _sandbox(facts["sandbox"], now_s))
    for item in facts["containers"]:
        yield TextRow("Container", _container(item, now_s))
        if item["message"]:
            yield TextRow("", " / ".join(item["message"].split("\n")).strip(" /"))
        for line in item["lines"]:
            yield TextRow("", f"| {line}")
    for item in facts["images"]:
        yield TextRow("Image", _image(item, cause))
    for item in facts["problems"]:
        yield TextRow("Runtime", f"{item['condition']} does not hold: {item['message']}")
    for item in facts["disks"]:
        yield TextRow("Disk", f"{item['path']} ({item['use']}): {item['text']}")
    notable = [item for item in facts["journal"] if not re.search(_QUIET, item["message"])]
    said = {_said(item["message"]): item for item in notable}  # the last of equal ones
    for message, item in sorted(said.items(), key=lambda pair: pair[1]["at_s"])[-JOURNAL_LINES:]:
        when = time.strftime("%H:%M:%S", time.localtime(item["at_s"]))
        if len(message) > _JOURNAL_CHARS:  # the cause is at the end
            message = "…" + message[-_JOURNAL_CHARS:]
        is_event = item["unit"] == "event"
        source = "" if is_event else f" {item['unit']}"
        yield TextRow("Event" if is_event else "Journal", f"{when}{source}: {message}")
    for item in facts["missing"]:
        yield TextRow("Unavailable", f"{item['source']}: {item['reason']}")


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


def _sandbox(item: Mapping[str, Any] | None, now_s: float) -> str:
    if item is None:
        return "none"
    state = "ready" if item["is_ready"] else "not ready"
    age = f", created {age_in_words(now_s - item['created_s'])} ago" if item["created_s"] else ""
    address = f", {item['address']}" if item["address"] else ""
    name = f"{item['id'][:SHORT_ID_CHARS]}, " if item["id"] else ""
    return f"{name}{state}{age}{address}"


def _container(container: Mapping[str, Any], now_s: float) -> str:
    parts = [container["name"]]
    if container["id"]:
        parts.append(container["id"][:SHORT_ID_CHARS])
    state = container["state"] or "not created yet"
    if container["state"] == "running":
        state += f" for {age_in_words(now_s - container['started_s'])}"
    elif container["state"] == "exited":
        reason = f", {container['reason']}" if container["reason"] else ""
        age = age_in_words(now_s - container["finished_s"])
        state += f" with {container['exit_code']}{reason}, {age} ago"
    parts.append(state)
    if container["restarts"]:
        parts.append(plural(container["restarts"], "restart"))
    if container["waiting"]:
        parts.append(f"the kubelet says {container['waiting']}")
    return ", ".join(parts)


def _image(item: Mapping[str, Any], cause: str) -> str:
    if item["pull"] is not None:
        text = item["pull"]["text"]
    elif item["failure"]:
        is_told = item["failure"] in cause  # the first line has it in full
        text = "failed" if is_told else f"failed: {item['failure']}"
        if item["next_try"] and not is_told:
            text += f"; {item['next_try']}"
    else:
        text = {True: "present", False: "not on the node", None: "unknown"}[item["is_present"]]
    says = f" (the kubelet says {item['says']})" if item["says"] else ""
    return f"{item['reference']}: {text}{says}"
