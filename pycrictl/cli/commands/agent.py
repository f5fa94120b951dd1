"""``pycrictl agent``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec

import typer

from pycrictl.base.errors import PycrictlError
from pycrictl.base.servicelog import notify, write_to
from pycrictl.base.units import quote
from pycrictl.cli.admin_socket import client_of, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.service_command import flags, options_of
from pycrictl.cluster.agent.agent_settings import AgentSettings, load
from pycrictl.kube.credential import Credential, in_cluster, read_kubeconfig
from pycrictl.runtime.cri.calls.client import CriClient


@options_of(AgentSettings)
def agent(ctx: typer.Context, **given: object) -> None:
    """Serve the node's image pulls to the cluster, as an API of the API server.

    One agent runs on each node, usually by a DaemonSet. "kubectl get imagepulls" then shows the
    pulls of all nodes, and any agent answers for all of them. It needs pycrictl[agent].

    It is idle until someone asks; only then does it query the runtime and list pods.

    Example: pycrictl agent --node-name n1 --kubeconfig /etc/kubernetes/kubelet.conf
    """
    app: AppContext = ctx.obj
    try:
        from pycrictl.cluster.agent import node_agent as service  # noqa: PLC0415 - an optional extra

        if find_spec("cryptography") is None:  # imported only in a subprocess
            raise ModuleNotFoundError(name="cryptography")
    except ModuleNotFoundError as exc:
        raise PycrictlError(
            f"the agent needs {quote(exc.name or '')}, which is not installed",
            hint="install it with: pip install 'pycrictl[agent]'",
        ) from None

    environ = app.env.environ

    def credential(kubeconfig: str) -> Credential:
        return read_kubeconfig(kubeconfig) if kubeconfig else in_cluster(environ)

    settings = load(flags(app, given), environ, credential)

    @contextmanager
    def connect() -> Iterator[tuple[CriClient, CriClient | None]]:
        with ExitStack() as stack:
            client = stack.enter_context(app.open_client("runtime"))
            proxy = proxy_of(client, settings.admin_socket)
            yield client, (stack.enter_context(client_of(proxy, client)) if proxy else None)

    write_to(app.env.stderr, settings.log_format, settings.log_level, environ)
    service.run(
        settings,
        partial(credential, settings.kubeconfig),
        connect,
        lambda: notify("READY=1", environ),
    )
