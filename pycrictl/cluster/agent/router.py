"""The routes of the agent, and who may use them. Paths are taken literally.

Names of Kubernetes need no escapes, so a path with one, or with an empty or dotted segment, is
refused before it is parsed: the API server and this agent cannot read a path differently.

How ``kubectl get imagepulls -A -w`` is served:

1. The API server authenticates and authorizes the user, and forwards the request to any agent as
   the front proxy. ``listener`` accepts the connection, ``access`` verifies the certificate, and
   this module finds the handler.
2. A list and its watches share a ``feed``: a round queries the nodes and compares the result with
   the objects before; each change gets a version and goes to every watch.
3. ``cluster`` finds the nodes with pods that wait for an image (``asyncapi``), and queries their
   agents (``peers``), which it verifies by the CA of ``listener.Certificates``; a token
   authenticates this agent to them.
4. The agent of such a node follows its pulls in ``node_pulls`` with ``pulls.sources.node_watch``;
   ``objects`` joins them with the images of the pods, and ``api.answers`` writes the requested
   form.

A version is the time in milliseconds and a tag of the agent's node, so versions of all agents have
one order. A watch that continues a recent list of another agent begins with all objects. If the
changes since a version are no longer known, the answer is 410 Gone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiohttp import web

from pycrictl.base.errors import Denied, PycrictlError
from pycrictl.base.metricspage import MetricsPage
from pycrictl.base.servicelog import Log, RateLimitedLog
from pycrictl.cluster.agent.access import Access, User
from pycrictl.cluster.agent.api import names
from pycrictl.cluster.agent.api.answers import (
    ListQuery,
    form_of,
    parameters,
    parse_query,
    refuse,
    respond,
)
from pycrictl.cluster.agent.api.discovery import DOCUMENTS
from pycrictl.cluster.agent.api.names import Refusal, is_name, not_found
from pycrictl.cluster.agent.cluster import Cluster, Scope
from pycrictl.cluster.agent.copies.documents import CopyRequest
from pycrictl.cluster.agent.copies.routes import CopyRoutes
from pycrictl.cluster.agent.feed import Feeds, WatchResponse
from pycrictl.cluster.agent.objects import pod_of

MAX_PATH_CHARS: Final = 1024
MAX_WATCHES: Final = 1000

_PATH: Final = re.compile(r"/|(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?")

Answer = Awaitable[web.StreamResponse]


class ApiCall(NamedTuple):
    """A request, and the parameters of its query."""

    request: web.BaseRequest
    given: dict[str, str]
    has_body: bool

    def check_get(self) -> None:
        if self.request.method != "GET":
            raise Refusal(405, f"only GET is served here, not {self.request.method[:20]}")
        if self.has_body:
            raise Refusal(413, "a request body is not accepted")


class AgentMetrics:
    """The agent's metrics, as a page for Prometheus."""

    def __init__(self) -> None:
        self.page = page = MetricsPage("pycrictl_agent_")
        self.requests: Counter[tuple[str, ...]] = Counter()
        self._copies = page.counter(
            "copies",
            "Copies that are over or were refused, by direction and end.",
            "direction",
            "end",
        )
        self._copy_bytes = page.counter(
            "copy_bytes",
            "Bytes of archives that were delivered by copies that are over.",
            "direction",
        )
        page.counted(
            "requests", "Requests, by kind and status.", lambda: self.requests, "kind", "code"
        )
        self.refused = RateLimitedLog(Log(__name__).warning, "refused")

    def answered(self, kind: str, status: int) -> None:
        self.requests[kind, str(status)] += 1

    def copied(self, direction: str, end: str, moved_bytes: int) -> None:
        self._copies.labels(direction, end).inc()
        self._copy_bytes.labels(direction).inc(moved_bytes)


@dataclass
class Router:
    """Answers requests; ``page`` returns the page of metrics, or of a probe, by its name."""

    access: Access
    cluster: Cluster
    feeds: Feeds
    copies: CopyRoutes
    metrics: AgentMetrics
    page: Callable[[str], Awaitable[web.Response]]
    max_watches_per_user: int = 200

    def __post_init__(self) -> None:
        self._watches: Counter[str] = Counter()
        self._log = Log(__name__)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; errors become responses, except timeouts and lost connections."""
        response: web.StreamResponse
        kind = "other"
        try:
            kind, answer = self._route(request)
            response = await answer
        except Refusal as refusal:
            response = refuse(refusal)
        except Denied as exc:
            response = refuse(Refusal(500, f"the agent lacks a permission: {exc.message}"))
        except PycrictlError as exc:
            response = refuse(Refusal(503, exc.message, retry_after_s=1))
        except (TimeoutError, ConnectionError):
            raise
        except Exception as exc:
            self._log.failure("request_failed", exc, kind=kind)
            response = refuse(Refusal(500, "internal error"))
        self.metrics.answered(kind, response.status)
        if response.status in (401, 403) or response.status >= 500:
            peer = request.remote or ""
            self.metrics.refused(kind=kind, status=response.status, peer=peer)
        if response.status == 401:
            response.force_close()
        return response

    def _route(self, request: web.BaseRequest) -> tuple[str, Answer]:
        path, _, query = request.raw_path.partition("?")
        if len(path) > MAX_PATH_CHARS or not _PATH.fullmatch(path):
            raise Refusal(401, "Unauthorized")
        has_body = request.can_read_body or request.headers.get("Content-Length", "0") != "0"
        words = path.strip("/").split("/")
        call = ApiCall(request, parameters(query), has_body)
        if not _is_of_copies(words):
            if request.method != "GET" or has_body:
                self.access.user(request)
            call.check_get()
        match words:
            case ["livez" | "healthz"]:
                return "health", self.page("livez")
            case ["readyz"]:
                return "health", self.page("readyz")
            case ["metrics"]:
                return "metrics", self._metrics(request)
            case ["node", "v1alpha1", *rest]:
                return "peer", self._peer(call, rest)
        return "api", self._api(call, words)

    # For users with a right to metrics

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        await self.access.metrics(request)
        return await self.page("metrics")

    # For other agents

    async def _peer(self, call: ApiCall, words: list[str]) -> web.StreamResponse:
        request, given, _ = call
        await self.access.peer(request)
        match words:
            case ["namespaces", namespace, "pods", name, names.COPIES, *rest]:
                asked = CopyRequest(request, namespace, name, rest, given)
                return await self.copies.answer_peer(asked)
            case ["pulls"]:
                scope = Scope(given.get("namespace", ""), given.get("pod", ""))
                objects = await self.cluster.of_own_node(scope)
                return respond({"items": objects})
        raise _no_such_resource()

    # For the front proxy

    async def _api(self, call: ApiCall, words: list[str]) -> web.StreamResponse:
        user = self.access.user(call.request)
        if (document := DOCUMENTS.get("/" + "/".join(words))) is not None:
            return respond(document)
        if words[:3] != ["apis", names.GROUP, names.VERSION]:
            raise _no_such_resource()
        match words[3:]:
            case ["namespaces", space, *_] if not is_name(space):
                raise _no_such_resource()
            case [names.RESOURCE]:
                return await self._list(call, user, "")
            case ["namespaces", namespace, names.RESOURCE]:
                return await self._list(call, user, namespace)
            case ["namespaces", namespace, names.RESOURCE, name]:
                return await self._get(call, namespace, name)
            case ["namespaces", namespace, "pods", name, names.COPIES, *rest] if is_name(name):
                asked = CopyRequest(call.request, namespace, name, rest, call.given)
                return await self.copies.answer(asked, user)
        raise _no_such_resource()

    async def _list(self, call: ApiCall, user: User, namespace: str) -> web.StreamResponse:
        query = parse_query(call.given)
        form = form_of(call.request.headers.get("Accept", ""), query.include)
        scope = _scope(namespace, query)
        feed = self.feeds.get(scope)
        if query.is_watch:
            with self._counted(user):
                watch = WatchResponse(feed, query, form)
                response = await watch.serve(call.request)
                if watch.has_expired:  # sent in the stream, whose status is 200
                    self.metrics.answered("watch", 410)
                return response
        if query.match == "Exact":
            raise Refusal(410, "only the newest version can be listed")
        await feed.refresh()
        objects = [document for document in feed.store.objects() if query.fits(document)]
        return respond(form.many(objects, feed.store.version), warnings=feed.warnings)

    async def _get(self, call: ApiCall, namespace: str, name: str) -> web.StreamResponse:
        query = parse_query(call.given)
        form = form_of(call.request.headers.get("Accept", ""), query.include)
        pod, _, container = name.rpartition(".")
        if not (is_name(pod) and is_name(container)):  # joined, they may be longer than a name
            raise not_found(name)
        feed = self.feeds.get(Scope(namespace, pod))
        await feed.refresh()
        document = feed.store.find((namespace, name))
        if document is None:
            raise not_found(name)
        return respond(form.single(document), warnings=feed.warnings)

    @contextmanager
    def _counted(self, user: User) -> Iterator[None]:
        """Count a watch while it lasts; raise Refusal if there are too many."""
        if self._watches[user.name] >= self.max_watches_per_user or self.watches >= MAX_WATCHES:
            raise Refusal(429, "too many watches: try again later", retry_after_s=5)
        self._watches[user.name] += 1
        try:
            yield
        finally:
            self._watches[user.name] -= 1
            self._watches += Counter()  # drops entries at zero

    @property
    def watches(self) -> int:
        return self._watches.total()


def _is_of_copies(words: list[str]) -> bool:
    """Return whether a path may be about copies; then method and user are checked later."""
    match words:
        case ["apis", _, _, "namespaces", _, "pods", _, names.COPIES, *_]:
            return True
        case ["node", "v1alpha1", "namespaces", _, "pods", _, names.COPIES, *_]:
            return True
    return False


def _scope(namespace: str, query: ListQuery) -> Scope:
    """Return the narrowest scope of a list: its field selector may name a pod or a node."""
    name, node = query.fields.wanted("metadata.name"), query.fields.wanted("spec.nodeName")
    pod = pod_of(name) if name else query.fields.wanted("spec.podName")
    given = query.fields.wanted("metadata.namespace")
    wanted = namespace or (given if is_name(given) else "")
    return Scope(wanted, pod if wanted and is_name(pod) else "", node if is_name(node) else "")


def _no_such_resource() -> Refusal:
    return Refusal(404, "the server could not find the requested resource")
