"""Agents behind a stand-in for the API server, in an event loop of their own."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from pycrictl.base.address import Address
from pycrictl.base.errors import ConnectError
from pycrictl.cluster.agent.node_agent import Agent, AgentSettings
from pycrictl.kube.credential import read_kubeconfig
from tests.kube.access import Grant, User
from tests.kube.aggregator import ApiService
from tests.kube.apiserver import ApiServer, serve
from tests.kube.kubectl import Kubectl
from tests.kube.tokens import Token
from tests.serving import believing
from tests.streams.servers import Certificates
from tests.waiting import settled

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

T = TypeVar("T")

OWN = "system:serviceaccount:pycrictl:pycrictl-agent"
AUDIENCE = "progress.pycrictl.dev"
BASE = f"/apis/{AUDIENCE}/v1alpha1"
RBAC = Path(__file__).parents[3] / "packaging/kubernetes/base/rbac.yaml"
"""The agents' rights, as shipped."""


class Loop:
    """Runs coroutines in a thread beside a test."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._own = len(self._selector.get_map())
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        # The library closes TLS connections a moment after it reports them closed.
        settled(lambda: len(self._selector.get_map()) <= self._own, limit_s=30)
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


Connected = AbstractContextManager[tuple["CriClient", "CriClient | None"]]


def no_runtime() -> Connected:
    raise ConnectError("no runtime here")


class Answer(NamedTuple):
    status: int
    headers: Message
    content: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.content)


def ask(
    address: tuple[str, int],
    path: str,
    pair: tuple[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
) -> Answer:
    connection = http.client.HTTPSConnection(*address, context=believing(pair), timeout=30)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


class Cluster:
    def __init__(self, api: ApiServer, folder: Path, loop: Loop) -> None:
        self.api = api
        self.folder = folder
        self.loop = loop
        self.agents: list[Agent] = []
        self.pace_s = 1.0  # Between two rounds of a watch
        self.token = token_of(OWN)
        for role in yaml.safe_load_all(RBAC.read_text()):
            if "rules" in role:
                api.grants.append(Grant(OWN, role["rules"], role["metadata"].get("namespace", "")))
        reader = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
        api.grants.append(Grant(OWN, [reader], "kube-system"))
        api.tokens["api-token"] = Token(User(OWN))
        api.tokens[self.token] = Token(User(OWN), (AUDIENCE,))
        api.tokens["of jane"] = Token(User("jane"))
        api.tokens["of admin"] = Token(User("admin", ("system:masters",)))
        (folder / "token").write_text(self.token)
        kubeconfig = api.kubeconfig(token="api-token", client_certificate="", client_key="")
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig))

    def start(
        self,
        node: str = "n1",
        connect: Callable[[], Connected] = no_runtime,
        *,
        waits: bool = True,
        check_s: float = 60.0,
        **settings: Any,
    ) -> Agent:
        """Start the agent of a node; the API server forwards requests to the first one."""

        async def begin() -> Agent:
            agents = self.api.agents
            given = {
                "certificate_file": agents.cert("server"),
                "key_file": agents.key("server"),
                "peer_ca_file": agents.ca,
                "peer_token_file": str(self.folder / "token"),
                "namespace": "pycrictl",
                **settings,
            }
            started = Agent(
                AgentSettings(listen=Address("127.0.0.1", 0), node=node, **given),
                lambda: read_kubeconfig(str(self.folder / "kubeconfig")),
                connect,
                check_s,
            )
            started.feeds.pace_s = self.pace_s
            await started.start()
            if waits:
                await started.ready.wait()
            return started

        agent = self.loop.run(begin())
        self.agents.append(agent)
        port = agent.listener.address[1]
        if len(self.agents) == 1:
            self.stand_behind(port)
        self.add_endpoint(node, port)
        return agent

    def add_endpoint(self, node: str, port: int) -> None:
        self.api.objects.add(
            "discovery.k8s.io",
            "endpointslices",
            {
                "metadata": {
                    "name": f"pycrictl-agent-{node}",
                    "namespace": "pycrictl",
                    "labels": {"kubernetes.io/service-name": "pycrictl-agent"},
                },
                "ports": [{"name": "https", "port": port}],
                "endpoints": [{"addresses": ["127.0.0.1"], "nodeName": node}],
            },
        )

    def add_pod(self, name: str, **changes: Any) -> dict[str, Any]:
        document = pod(name, **changes)
        self.api.objects.add("", "pods", document)
        return document

    def stand_behind(self, port: int) -> None:
        self.api.services.append(ApiService(AUDIENCE, "v1alpha1", "127.0.0.1", port))

    def kubectl(self, user: str = "admin") -> Kubectl:
        """Return a kubectl that acts as one of the API server's users."""
        file = self.folder / f"{user}.kubeconfig"
        file.write_text(json.dumps(self.api.kubeconfig(name=user)))
        return Kubectl(file, self.folder)

    def ask(
        self,
        path: str,
        *,
        agent: int = 0,
        certificate: tuple[str, str] | None = None,
        user: str = "",
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to an agent directly, with ``user`` in the front proxy's headers.

        Args:
            certificate: the client's certificate and key; None for none.
        """
        named = {"X-Remote-User": user, "X-Remote-Group": "dev"} if user else {}
        address = self.agents[agent].listener.address
        return ask(address, path, certificate, {**named, **(headers or {})}, method, body)

    def get(self, path: str, agent: int = 0, user: str = "jane", **how: Any) -> Answer:
        """Send a request to an agent as the front proxy; a relative path is below ``BASE``."""
        path = path if path.startswith("/") else f"{BASE}/{path}"
        return self.ask(path, agent=agent, certificate=self.front_proxy, user=user, **how)

    @property
    def reviews(self) -> int:
        """How many reviews of tokens and rights the API server was asked for."""
        return sum("reviews" in path for _, path, _ in self.api.asked)

    @property
    def front_proxy(self) -> tuple[str, str]:
        return self.api.front_proxy.cert("client"), self.api.front_proxy.key("client")

    def close(self) -> None:
        for agent in self.agents:
            self.loop.run(agent.stop())


def pod(
    name: str,
    namespace: str = "default",
    node: str = "n1",
    image: str = "registry.test/team/app:1",
    state: dict[str, Any] | None = None,
    phase: str = "Pending",
) -> dict[str, Any]:
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "creationTimestamp": "2026-11-22T10:00:00Z",
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": "main", "image": image}],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "main", "image": image, "state": state or waiting}],
        },
    }


def token_of(user: str, number: int = 0) -> str:
    """Return a token with readable claims, like a service account's."""
    text = json.dumps({"sub": user, **({"jti": number} if number else {})})
    claims = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
    return f"e30.{claims}.x"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def standing(certificates: Certificates, folder: Path) -> Iterator[Cluster]:
    """Serve a cluster without pods and agents."""
    with serve(certificates) as api:
        api.objects.replace("", "pods", {"items": []})
        loop = Loop()
        made = Cluster(api, folder, loop)
        try:
            yield made
        finally:
            made.close()
            loop.close()
