"""What is wrong with a pod or a node, on one screen for people. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

from pycrictl.show.list_views import SHORT_ID_CHARS
from pycrictl.show.render import write_lines
from pycrictl.units import format_age, format_bytes, plural

JOURNAL_LINES: Final = 4
_JOURNAL_CHARS: Final = 240
_LABEL_CHARS: Final = 11
_INFO: Final = r"^I\d{4} |\blevel=(?:info|debug)\b"
"""What containerd (logrus) and the kubelet (klog) write when all is well."""


def write_pod(document: Mapping[str, Any], out: TextIO) -> None:
    """Write the most likely cause, what to do next, and what that rests on.

    Of a healthy pod there is one line.
    """
    write_lines([f"{document['pod']} {document['cause']['text']}"], out)
    if document["healthy"]:
        return
    lines = []
    if advice := document["cause"]["advice"]:
        lines.append(_labelled("next", advice))
    lines += [_labelled("also", f"it {one['text']}") for one in document["also"]]
    write_lines([*lines, "", *_rows(document["facts"])], out)


def write_node(document: Mapping[str, Any], out: TextIO) -> None:
    """Write the findings, the heaviest first, each with what to do, and what they rest on."""
    findings, facts = document["findings"], document["facts"]
    lines = []
    for one in findings:
        lines.append(_labelled(one["severity"].upper(), one["text"]))
        if one["advice"]:
            lines.append(_labelled("", f"do: {one['advice']}"))
    if not findings:
        lines.append("nothing is wrong with this node as far as can be seen")
    write_lines([*lines, "", *_node_rows(facts)], out)


def _node_rows(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["endpoint"]:
        yield _labelled("Runtime", f"{facts['runtime'] or 'unknown'} at {facts['endpoint']}")
    if facts["kubelet_config"]:
        limit = facts["kubelet_limit"]
        pulls = plural(limit, "pull") if limit else "any number of pulls"
        yield _labelled("Kubelet", f"{pulls} at once; {facts['kubelet_config']}")
    if facts["proxy"]:
        yield _labelled("Proxy", f"{facts['proxy']} in front of {facts['proxy_upstream']}")
    for one in facts["disks"]:
        yield _labelled("Disk", _disk(one))
    if facts["is_clock_synchronized"] is not None:
        state = "synchronized" if facts["is_clock_synchronized"] else "not synchronized"
        yield _labelled("Clock", state)
    for route in facts["routes"]:
        mirror = f", mirror of {route['registry']}" if route["is_mirror"] else ""
        yield _labelled("Registry", f"{route['url']}{mirror}")
        marks = {True: "ok", False: "FAILS", None: "-"}
        for step in route["steps"]:
            yield _labelled("", f"{step['name']:<10}  {marks[step['is_good']]:<5}  {step['text']}")
    for one in facts["missing"]:
        yield _labelled("Not asked", f"{one['source']}: {one['reason']}")


def _rows(facts: Mapping[str, Any]) -> Iterator[str]:
    now_s = facts["now_s"]
    yield _labelled("Sandbox", _sandbox(facts["sandbox"], now_s))
    for one in facts["containers"]:
        yield _labelled("Container", _container(one, now_s))
        for line in one["lines"]:
            yield _labelled("", f"| {line}")
    for one in facts["images"]:
        yield _labelled("Image", _image(one))
    for name, pull in facts["stray_pulls"].items():
        yield _labelled("Pull", f"{name}: {_pull(pull)}")
    for one in facts["problems"]:
        yield _labelled("Runtime", f"{one['condition']} does not hold: {one['message']}")
    for one in facts["disks"]:
        yield _labelled("Disk", _disk(one))
    notable = [one for one in facts["journal"] if not re.search(_INFO, one["message"])]
    for one in notable[-JOURNAL_LINES:]:
        when = time.strftime("%H:%M:%S", time.localtime(one["at_s"]))
        message = one["message"]
        if len(message) > _JOURNAL_CHARS:  # the cause stands at the end
            message = "…" + message[-_JOURNAL_CHARS:]
        yield _labelled("Journal", f"{when} {one['unit']}: {message}")
    for one in facts["missing"]:
        yield _labelled("Not asked", f"{one['source']}: {one['reason']}")


def _labelled(label: str, text: str) -> str:
    return label.ljust(_LABEL_CHARS) + text


def _sandbox(one: Mapping[str, Any] | None, now_s: float) -> str:
    if one is None:
        return "none"
    state = "ready" if one["is_ready"] else "not ready"
    age = format_age(now_s - one["created_s"])
    address = f", {one['address']}" if one["address"] else ""
    return f"{one['id'][:SHORT_ID_CHARS]}, {state}, created {age} ago{address}"


def _container(one: Mapping[str, Any], now_s: float) -> str:
    parts = [one["name"]]
    if one["id"]:
        parts.append(one["id"][:SHORT_ID_CHARS])
    state = one["state"] or "not created yet"
    if one["state"] == "running":
        state += f" for {format_age(now_s - one['started_s'])}"
    elif one["state"] == "exited":
        reason = f", {one['reason']}" if one["reason"] else ""
        state += f" with {one['exit_code']}{reason}, {format_age(now_s - one['finished_s'])} ago"
    parts.append(state)
    if one["restarts"]:
        parts.append(plural(one["restarts"], "restart"))
    if one["waiting"]:
        parts.append(f"the kubelet says {one['waiting']}")
    return ", ".join(parts)


def _image(one: Mapping[str, Any]) -> str:
    if one["pull"] is not None:
        text = _pull(one["pull"])
    elif one["failure"]:
        text = f"failed: {one['failure']}"
        if one["next_try"]:
            text += f"; {one['next_try']}"
    else:
        text = {True: "present", False: "not on the node", None: "unknown"}[one["is_present"]]
    says = f" (the kubelet says {one['says']})" if one["says"] else ""
    return f"{one['reference']}: {text}{says}"


def _pull(one: Mapping[str, Any]) -> str:
    if one["place"]:
        behind = f" behind {one['behind']}" if one["behind"] else ""
        return f"queued, place {one['place']}{behind}"
    parts = ["being pulled"]
    if one["percent"] is not None:
        parts.append(f"{int(one['percent'])} %")
    if one["total_bytes"]:
        parts.append(
            f"{format_bytes(one['done_bytes'] or 0)} of {format_bytes(one['total_bytes'])}"
        )
    if one["rate"] is not None:
        parts.append(f"{format_bytes(one['rate'])}/s")
    if one["eta"]:
        parts.append(f"{one['eta']} left")
    return ", ".join(parts)


def _disk(one: Mapping[str, Any]) -> str:
    size = one["size_bytes"]
    share = f" ({100 * one['free_bytes'] / size:.0f} %)" if size else ""
    inodes = ""
    if one["inodes"]:
        inodes = f", {100 * one['free_inodes'] / one['inodes']:.0f} % of inodes"
    free = f"{format_bytes(one['free_bytes'])} of {format_bytes(size)} free{share}{inodes}"
    return f"{one['path']} ({one['use']}): {free}"
