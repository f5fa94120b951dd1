"""Our cluster behind a relay that follows all rules, or breaks a chosen one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tests.serving import Handler, serving

from .cluster import ROUTE, Answer, Cluster


class Sent(NamedTuple):
    """A request; paths below `/off` are for the kubelet with its routes switched off."""

    method: str
    path: str
    token: str
    upgrades: bool
    body: bytes


def _for(token: str, path: str) -> Callable[[Sent], Sent]:
    """Treat a token as the administrator's in requests whose path matches."""

    def patch(sent: Sent) -> Sent:
        is_it = sent.token == token and re.search(path, sent.path)
        return sent._replace(token="boss") if is_it else sent

    return patch


def _path(pattern: str, instead: str) -> Callable[[Sent], Sent]:
    return lambda sent: sent._replace(path=re.sub(pattern, instead, sent.path))


def _status(wrong: int, instead: int, path: str) -> Callable[[Sent, Answer], Answer]:
    def patch(sent: Sent, answer: Answer) -> Answer:
        is_it = answer.status == wrong and re.search(path, sent.path)
        return answer._replace(status=instead) if is_it else answer

    return patch


def _get(sent: Sent) -> Sent:
    return sent if sent.method == "POST" else sent._replace(method="GET")


def _slash(sent: Sent) -> Sent:
    return sent._replace(body=sent.body.replace(b'"etc/', b'"/etc/'))


def _no_upgrade(sent: Sent, answer: Answer) -> Answer:
    return answer._replace(status=400) if sent.upgrades and answer.status == 200 else answer


def _texts(_: Sent, answer: Answer) -> Answer:
    return answer._replace(body=re.sub(rb'": ?([\d.]+)', rb'":"\1"', answer.body))


_ON: Final = f"^{ROUTE}/"
_STREAM: Final = "/imagepullprogress"

REQUESTS: Final[dict[str, tuple[str, Callable[[Sent], Sent]]]] = {
    "a token that is made up counts": ("A1", _for("made-up", _ON)),
    "everybody may": ("A2", _for("eve", _ON)),
    "namespaces are not looked at": ("A3", _path(f"({_ON})no-such-namespace/", r"\1default/")),
    "an unknown container is the pod": ("A4", _path(f"({_ON}.*)/no-such-container", r"\1")),
    "any method will do": ("A5", _get),
    "parameters are not read": ("A6", _path("[?]timeoutSeconds=soon", "")),
    "a container is its pod": ("A10", _path(f"({_ON}default/web)/main$", r"\1")),
    "the subresource is everybody's": ("A11", _for("eve", _STREAM)),
    "the subresource has other images": ("A13", _path(f"({_STREAM})$", r"\1?container=main")),
    "the switch is not looked at": ("A15", _path("^/off/", "/")),
    "the switch is the kubelet's alone": ("A16", _path("/pods/off/", "/pods/web/")),
    "everybody copies": ("A17", _for("eve", "/containercopies")),
    "a relative path is copied": ("A18", _slash),
}
"""Faults in handling requests, each with the rule that it breaks."""

ANSWERS: Final[dict[str, tuple[str, Callable[[Sent, Answer], Answer]]]] = {
    "a refused upgrade keeps its connection": ("A7", lambda _, answer: answer),
    "an upgrade is a bad request": ("A8", _no_upgrade),
    "numbers are texts": ("A9", _texts),
    "an unknown container is not found": ("A12", _status(400, 404, _STREAM)),
    "an unknown route is a bad request": ("A14", _status(404, 400, f"{_ON}(default|.*/more)$")),
}
"""Faults in responses, each with the rule that it breaks."""

FAULTS: Final = {name: rule for name, (rule, _) in (*REQUESTS.items(), *ANSWERS.items())}


class _Relay(Handler):
    fault = ""
    ours: Cluster

    def do_GET(self) -> None:
        fault, ours = self.fault, self.ours
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        sent = Sent(self.command, self.path, token, bool(self.headers["Upgrade"]), body)
        if fault in REQUESTS:
            sent = REQUESTS[fault][1](sent)
        to = ours.kubelet if sent.path.startswith(ROUTE) else ours.api
        if sent.path.startswith("/off/"):
            to = ours.kubelet_off
        path = sent.path.removeprefix("/off")
        answer = ours.ask(to, path, token=sent.token, method=sent.method, body=sent.body)
        if fault in ANSWERS:
            answer = ANSWERS[fault][1](sent, answer)
        if sent.upgrades and fault != "a refused upgrade keeps its connection":
            self.close_connection = True
        self.send(answer.status, answer.body)

    do_POST = do_PUT = do_DELETE = do_GET


@contextmanager
def serving_cluster(ours: Cluster, fault: str) -> Iterator[dict[str, str]]:
    """Serve a cluster with a fault, or with none; yield the suite's settings for it."""
    with serving(type("Broken", (_Relay,), {"fault": fault, "ours": ours})) as port:
        url = f"http://127.0.0.1:{port}"
        yield {
            "CONFORMANCE_API": url,
            "CONFORMANCE_KUBELET": url,
            "CONFORMANCE_KUBELET_OFF": f"{url}/off",
            "CONFORMANCE_TOKEN": ours.token,
            "CONFORMANCE_STRANGER": ours.stranger,
            "CONFORMANCE_POD": "/".join(ours.pod),
            "CONFORMANCE_POD_OFF": "/".join(ours.pod_off),
            "CONFORMANCE_SUBRESOURCE": ours.subresource,
            "CONFORMANCE_COPIES": ours.copies,
        }
