"""A stand-in for an API server: TLS, certificates, tokens, RBAC, objects, aggregation.

A kubelet's credential has rights as with a real one (Node authorizer): to list and watch pods of
its own node with the field selector, and to create and patch events. Others need a ``Grant``.
Answers have the shape of a real server's.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.kube import access, aggregator, tokens
from tests.kube.access import Grant, Request, User
from tests.kube.aggregator import ApiService, Forwarding
from tests.kube.objects import (
    Objects,
    group_document,
    kind_of,
    merged,
    own_groups,
    resource_list,
    status,
)
from tests.kube.tokens import Token
from tests.once import made_once
from tests.serving import Handler, believing, serving
from tests.streams.servers import Certificates, make_certificates

NODE = "n1"
PODS = json.loads((Path(__file__).parent / "data/pods.json").read_text())
USERS = {
    "client": f"/O=system:nodes/CN=system:node:{NODE}",
    "admin": f"/O={access.MASTERS}/CN=admin",
    "jane": "/O=dev/CN=jane",
}
FRONT_PROXY = "front-proxy-client"
_AUTHENTICATION = "extension-apiserver-authentication"

Answer = tuple[int, Any]


@dataclass
class ApiServer:
    """The state of the server, and the requests it has received.

    Attributes:
        front_proxy: its CA and client certificate for requests to APIServices.
        silence: an event that the next answers wait for; None for none.
        drips: answers are sent a byte at a time and never end.
        tokens: the users by bearer token.
        grants: rights, besides those of nodes and ``system:masters``.
        agent: answers a permitted request, or returns False to leave it to the server.
        raw: the body to send instead of documents.
        refusals: statuses to refuse events with, by method.
        restart: stops the server and its connections, and starts it again some seconds later.
    """

    certificates: Certificates
    front_proxy: Certificates
    port: int = 0
    objects: Objects = field(default_factory=Objects)
    silence: threading.Event | None = None
    drips: bool = False
    tokens: dict[str, Token] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    services: list[ApiService] = field(default_factory=list)
    agent: Callable[[Handler, Request, User], bool] = field(default=lambda *_: False)
    raw: bytes = b""
    refusals: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    restart: Callable[[float], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        self.pods = PODS
        self.grants.append(Grant(f"group:{access.AUTHENTICATED}", [access.DISCOVERY]))
        self.objects.add("", "configmaps", self._authentication())

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def pods(self) -> dict[str, Any]:
        return self.objects.whole("", "pods")

    @pods.setter
    def pods(self, document: dict[str, Any]) -> None:
        self.objects.replace("", "pods", document)

    @property
    def agents(self) -> Certificates:
        """The CA of the agents, and the certificate that they serve with."""
        return Certificates(self.certificates.folder / "agents")

    def front_proxy_context(self) -> ssl.SSLContext:
        """Return the aggregator's TLS context; it does not verify servers."""
        return believing((self.front_proxy.cert("client"), self.front_proxy.key("client")))

    def kubeconfig(
        self, *, inline: bool = False, name: str = "client", **changes: Any
    ) -> dict[str, Any]:
        files = {
            "certificate-authority": self.certificates.ca,
            "client-certificate": self.certificates.cert(name),
            "client-key": self.certificates.key(name),
        }
        values = dict(files)
        if inline:
            values = {
                f"{key}-data": base64.b64encode(Path(path).read_bytes()).decode()
                for key, path in files.items()
            }
        cluster = {"server": self.url}
        user: dict[str, Any] = {}
        for key, value in values.items():
            (user if key.startswith("client") else cluster)[key] = value
        for key, value in changes.items():
            changed = key.replace("_", "-")
            (cluster if changed == "server" else user)[changed] = value
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    def may(self, user: User, request: Request) -> str | None:
        """Return why a request is refused, or an empty reason; ``None`` if it is not."""
        if user.is_master or any(grant.covers(user, request) for grant in self.grants):
            return None
        if user.name.startswith("system:node:"):
            return access.node_refusal(user, request)
        return ""

    def _authentication(self) -> dict[str, Any]:
        return {
            "metadata": {"name": _AUTHENTICATION, "namespace": "kube-system"},
            "data": {
                "client-ca-file": Path(self.certificates.ca).read_text(),
                "requestheader-allowed-names": json.dumps([FRONT_PROXY]),
                "requestheader-client-ca-file": Path(self.front_proxy.ca).read_text(),
                "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
                "requestheader-group-headers": '["X-Remote-Group"]',
                "requestheader-uid-headers": '["X-Remote-Uid"]',
                "requestheader-username-headers": '["X-Remote-User"]',
            },
        }


class _Handler(Handler):
    """Answers the requests of a connection, from the state of ``api``."""

    api: ApiServer

    def do_GET(self) -> None:
        api = self.api
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(content) if content.startswith(b"{") else None
        if self.path.endswith("/selfsubjectreviews") and (user := self._user(api)):
            self.send_document(201, {"status": {"userInfo": {"username": user.name}}})
            return
        api.asked.append((self.command, self.path, body))
        if api.silence is not None:
            api.silence.wait(60)
        try:
            if not self._hand_on(api, content):
                self._answer(api, *self._judge(api, body))
        except OSError:
            self.close_connection = True  # the client has disconnected

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET

    def _answer(self, api: ApiServer, code: int, document: Any) -> None:
        if isinstance(document, Iterator):
            self.send_lines(document)
            return
        content = api.raw or json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) + (1 << 30) * api.drips))
        self.end_headers()
        while api.drips:
            self.wfile.write(b" ")
            threading.Event().wait(0.05)
        self.wfile.write(content)

    def _hand_on(self, api: ApiServer, body: bytes) -> bool:
        request, user = access.parse(self.command, self.path), self._user(api)
        service = next((service for service in api.services if service.owns(request.path)), None)
        path = request.path.removeprefix("/openapi/v3")
        schema_of = next((service for service in api.services if service.prefix == path), None)
        owner = service or (schema_of if path != request.path else None)
        if user is None or api.may(user, request) is not None:
            return False
        if api.agent(self, request, user):
            return True
        if not owner:
            return False
        how = Forwarding(owner.host, owner.port, api.front_proxy_context(), user)
        aggregator.forward(self, how, aggregator.forwarded_target(self.path), body)
        return True

    def _judge(self, api: ApiServer, body: Any) -> Answer:
        user = self._user(api)
        if user is None:
            return 401, status(401, "Unauthorized", "Unauthorized")
        request = access.parse(self.command, self.path)
        query = dict(parse_qsl(urlsplit(self.path).query))
        reason = api.may(user, request)
        if reason is not None:
            text = access.forbidden_message(user, request) + (f": {reason}" if reason else "")
            details = {"name": request.name, "group": request.group, "kind": request.resource}
            return 403, status(403, text, "Forbidden", **details)
        if not request.resource:
            return self._plain(api, request.path)
        if request.resource == "events" and self.command in api.refusals:
            code = api.refusals[self.command]
            return code, status(code, "refused")
        if request.resource == "events" and self.command in ("POST", "PATCH"):
            return (201 if self.command == "POST" else 200), body
        return _stored(api, request, query, body)

    def _plain(self, api: ApiServer, path: str) -> Answer:
        """Answer a non-resource request: discovery, schemas, health."""
        context = api.front_proxy_context() if api.services else believing()
        parts = path.strip("/").split("/")
        match parts:
            case ["api"]:
                return 200, {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                behind = [
                    group_document(service.group, service.version) for service in api.services
                ]
                groups = own_groups() + behind
                return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["api", version] if resources := resource_list("", version):
                return 200, resources
            case ["apis", group, version] if resources := resource_list(group, version):
                return 200, resources
            case ["openapi", "v3"]:
                whole: dict[str, Any] = {"paths": {}}
                for service in api.services:
                    whole = merged(whole, aggregator.schemas_of(service, context))
                return 200, whole
            case ["version"]:
                return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
            case ["livez" | "readyz" | "healthz"]:
                return 200, "ok"
        return 404, status(404, "the server could not find the requested resource", "NotFound")

    def _user(self, api: ApiServer) -> User | None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and token in api.tokens:
            token_entry = api.tokens[token]
            if token_entry.trouble((tokens.API_AUDIENCE,)):
                return None
            acts_for = self.headers["Impersonate-User"] if token_entry.user.is_master else None
            return User(acts_for) if acts_for else token_entry.user
        if not isinstance(self.connection, ssl.SSLSocket):
            return None
        certificate: Any = self.connection.getpeercert() or {}
        subject = [pair for entry in certificate.get("subject", ()) for pair in entry]
        names = [value for key, value in subject if key == "commonName"]
        groups = tuple(value for key, value in subject if key == "organizationName")
        return User(names[0], groups) if names else None


def _stored(api: ApiServer, request: Request, query: Mapping[str, str], body: Any) -> Answer:
    kind = kind_of(request)
    if kind is None or request.subresource:
        return 404, status(404, "the server could not find the requested resource", "NotFound")
    match request.verb, request.resource:
        case "create", _ if body is None:
            return 415, status(415, "only JSON is understood here", "UnsupportedMediaType")
        case "create", "tokenreviews":
            return 201, tokens.review(api.tokens, body)
        case "create", "subjectaccessreviews":
            return 201, _access_review(api, body)
        case "list", _:
            return 200, api.objects.select(kind, request, query)
        case "watch", _:
            return 200, api.objects.watch(kind, request, query)
        case "get", _:
            document = api.objects.find(kind, request)
            if document is None:
                resource = ".".join(filter(None, (request.resource, request.group)))
                text = f'{resource} "{request.name}" not found'
                details = {"name": request.name, "kind": request.resource}
                return 404, status(404, text, "NotFound", **details)
            return 200, document
    return 405, status(405, "the server does not allow this method on the requested resource")


def _access_review(api: ApiServer, body: Any) -> dict[str, Any]:
    spec = body["spec"]
    asked = spec.get("resourceAttributes")
    groups, extra = tuple(spec.get("groups") or ()), spec.get("extra") or {}
    user = User(spec["user"], groups, spec.get("uid", ""), extra)
    if asked is None:
        plain = spec["nonResourceAttributes"]
        request = Request(plain.get("verb", ""), plain.get("path", ""))
    else:
        keys = ("verb", "group", "resource", "subresource", "namespace", "name")
        request = Request(**{key: asked.get(key, "") for key in keys})
    reason = api.may(user, request)
    allowed = {"allowed": reason is None, **({"reason": reason} if reason else {})}
    return {**body, "status": allowed}


@contextmanager
def serve(certificates: Certificates, port: int = 0) -> Iterator[ApiServer]:
    """Serve on the loopback; ``certificates`` are from ``make_node_certificates``."""
    made = ApiServer(certificates, Certificates(certificates.folder / "front-proxy"))

    class Bound(_Handler):
        api = made

    context = certificates.server_context()
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    with ExitStack() as stack:

        def restart(away_s: float) -> None:
            stack.close()
            time.sleep(away_s)
            stack.enter_context(serving(Bound, context, port=made.port))

        made.port = stack.enter_context(serving(Bound, context, port=port))
        made.restart = restart
        try:
            yield made
        finally:
            if made.silence is not None:
                made.silence.set()


def make_node_certificates(folder: Path) -> Certificates:
    def make() -> Certificates:
        kube = folder / "kube"
        (kube / "front-proxy").mkdir(parents=True)
        make_certificates(kube / "front-proxy", client=f"/CN={FRONT_PROXY}")
        (kube / "agents").mkdir()
        names = "DNS:pycrictl-agent,DNS:pycrictl-agent.pycrictl.svc"
        make_certificates(kube / "agents", names)
        return make_certificates(kube, **USERS)

    return made_once(folder / "kube-certificates", make)


def agent_flags(agents: Certificates) -> list[str]:
    """Return the options of an agent that serves with the certificate of ``server``."""
    files = {"tls-cert": agents.cert("server"), "tls-key": agents.key("server")}
    return [f"--{option}={path}" for option, path in {**files, "peer-ca": agents.ca}.items()]


def write_kubeconfig(
    document: dict[str, Any], root: Path, path: str = "etc/kubernetes/kubelet.conf"
) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))
    return file
