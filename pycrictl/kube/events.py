"""Events ``PullProgress`` as objects, and the calls that write them, one a second at most.

When the API server does not take one, it is left alone for a while; nobody waits for it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pycrictl.errors import AlreadyExists, NotFound, PycrictlError
from pycrictl.units import format_moment

if TYPE_CHECKING:
    from pycrictl.kube.apiclient import ApiClient

REASON: Final = "PullProgress"
COMPONENT: Final = "pycrictl"

QUIET_S: Final = 2.0
"""What is over before that gets no Event: the kubelet's own say that it was pulled."""

PACE_S: Final = 10.0
"""How often an Event is changed while its phase stays the same."""

CALL_PAUSE_S: Final = 1.0
"""The shortest time between two calls."""

TIMEOUT_S: Final = 5.0
FIRST_REST_S: Final = 10.0
LONGEST_REST_S: Final = 600.0
"""How long the API server is left alone after a failure, and after many in a row."""

MAX_MESSAGE: Final = 1024
"""As the API server checks for events.k8s.io."""

_MAX_NAME: Final = 200
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Subject(Protocol):
    """The pod that an Event is about."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def uid(self) -> str:
        """Its UID."""


class News(NamedTuple):
    """An Event as it is to stand now.

    Attributes:
        name: of the object, the same for a pod and an image.
        writing: which time it is written, from 1.
        since_s: how long ago it began.
        is_new: it has not been written yet, as far as is known.
    """

    name: str
    pod: Subject
    message: str
    is_warning: bool
    writing: int
    since_s: float
    is_new: bool


class EventWriter:
    """Writes Events. It blocks: it is called in a thread.

    Args:
        api: the API server.
        complain: called when the API server takes no Event, once until it does.
    """

    def __init__(self, api: ApiClient, complain: Callable[[PycrictlError], None]) -> None:
        self._api = api
        self._complain = complain
        self._rest_s = 0.0

    def write(self, news: News) -> float:
        """Create or change the Event; return how long to wait before the next one."""
        try:
            self._write(news)
        except PycrictlError as exc:
            if not self._rest_s:
                self._complain(exc)
            self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), LONGEST_REST_S)
            return self._rest_s
        self._rest_s = 0.0
        return CALL_PAUSE_S

    def _write(self, news: News) -> None:
        """Make the call, or two if the Event is not there as expected."""
        client = self._api
        path = f"/api/v1/namespaces/{news.pod.namespace}/events"
        changes = _changes(news)
        try:
            if news.is_new:
                client.post(path, {**_identity(news, client.node), **changes})
            else:
                client.patch(f"{path}/{news.name}", changes)
        except AlreadyExists:  # of an earlier pull, or of an earlier process
            time.sleep(CALL_PAUSE_S)
            client.patch(f"{path}/{news.name}", changes)
        except NotFound:  # Events are kept for an hour
            time.sleep(CALL_PAUSE_S)
            client.post(path, {**_identity(news, client.node), **changes})


def is_valid(pod: Subject) -> bool:
    """Return whether the API server can have such a pod; its name becomes part of a path."""
    return all(_NAME.fullmatch(name) for name in (pod.namespace, pod.name))


def event_name(pod: Subject, image: str) -> str:
    """Return the name of an Event, which a process that takes over or starts again finds, too."""
    digest = hashlib.sha256(f"{pod.uid} {image}".encode()).hexdigest()[:16]
    return f"{pod.name[:_MAX_NAME].rstrip('-.')}.pull-{digest}"


def _changes(news: News) -> dict[str, Any]:
    now = time.time()
    return {
        "message": news.message,
        "type": "Warning" if news.is_warning else "Normal",
        "count": news.writing,
        "firstTimestamp": format_moment(now - news.since_s),
        "lastTimestamp": format_moment(now),
    }


def _identity(news: News, node: str) -> dict[str, Any]:
    """Return what of an Event (core/v1) never changes."""
    pod = news.pod
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": news.name, "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reason": REASON,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }
