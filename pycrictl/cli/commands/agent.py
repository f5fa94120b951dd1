"""``pycrictl agent``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated, Final

import typer

from pycrictl.base.address import Address
from pycrictl.base.errors import PycrictlError
from pycrictl.base.servicelog import notify
from pycrictl.base.units import quote
from pycrictl.cli import options
from pycrictl.cli import service_options as service
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, client_of, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.kube.credential import Credential, in_cluster, own_namespace, read_kubeconfig
from pycrictl.node.kubelet import KubeletConfig, copy_quotas, read_kubelet_config
from pycrictl.runtime.cri.calls.client import CriClient

TLS_FOLDER: Final = "/etc/pycrictl-agent"
PEER_TOKEN: Final = "/var/run/secrets/progress.pycrictl.dev/token"
"""Where the manifests mount the Secret of the certificate, and the token for other agents."""

EVERYWHERE: Final = Address("0.0.0.0", 10281)


@options.with_records
def agent(
    ctx: typer.Context,
    listen: Annotated[
        Address,
        service.address_option("--listen", help="Where to serve (default: 0.0.0.0:10281)."),
    ] = EVERYWHERE,
    node_name: Annotated[
        str,
        typer.Option(
            "--node-name",
            metavar="NAME",
            help="The name of this node (default: $NODE_NAME, else the kubelet's).",
        ),
    ] = "",
    kubeconfig: Annotated[
        str,
        options.file_option(
            "--kubeconfig",
            help="Connect to the API server with this kubeconfig"
            " (default: as the pod's service account).",
        ),
    ] = "",
    tls_cert: Annotated[
        str,
        options.file_option(
            "--tls-cert",
            help="The certificate to serve with, which must have the name pycrictl-agent.",
        ),
    ] = f"{TLS_FOLDER}/tls.crt",
    tls_key: Annotated[
        str,
        options.file_option("--tls-key", help="The key of --tls-cert."),
    ] = f"{TLS_FOLDER}/tls.key",
    peer_ca: Annotated[
        str,
        options.file_option("--peer-ca", help="The CA of all agents' certificates."),
    ] = f"{TLS_FOLDER}/ca.crt",
    peer_token: Annotated[
        str,
        options.file_option(
            "--peer-token",
            help="The service account's token for the audience progress.pycrictl.dev, which agents"
            " use to authenticate to each other.",
        ),
    ] = PEER_TOKEN,
    peer_namespace: Annotated[
        str,
        typer.Option(
            "--peer-namespace",
            metavar="NAME",
            help="The namespace of the agents' Service, pycrictl-agent"
            " (default: this pod's, else pycrictl).",
        ),
    ] = "",
    admin_socket: AdminSocket = DEFAULT,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            help="Write Events about this node's pulls; omit this if the proxy writes them.",
        ),
    ] = False,
    spool_dir: Annotated[
        str,
        typer.Option(
            "--spool-dir",
            metavar="DIR",
            help="Serve copies of containers' files, and spool them in this folder"
            " (default: no copies).",
        ),
    ] = "",
    spool_size: Annotated[
        int,
        service.size_option(
            "--spool-size",
            help="Space for copies in --spool-dir, such as 50Gi; 0: no limit (default: 10Gi).",
        ),
    ] = 10 << 30,
    container_copy_size_limit: service.CopySizeLimit = None,
    container_copies_per_pod: service.CopiesPerPod = None,
    kubelet_config: Annotated[
        str,
        options.file_option(
            "--kubelet-config",
            help="Take copy quotas that no option sets from the kubelet's configuration, such"
            " as /var/lib/kubelet/config.yaml; enableDebuggingHandlers: false there turns copies"
            " off.",
        ),
    ] = "",
    *,
    log: service.LogOptions,
) -> None:
    """Serve the node's image pulls to the cluster through the API server.

    One agent runs on each node, usually by a DaemonSet. "kubectl get imagepulls" then shows the
    pulls of all nodes, and any agent answers for all of them. The agent needs pycrictl[agent].

    Without --events, it queries the runtime and lists pods only when someone asks.

    Example: pycrictl agent --node-name n1 --kubeconfig /etc/kubernetes/kubelet.conf
    """
    app: AppContext = ctx.obj
    try:
        from pycrictl.cluster.agent import node_agent  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as exc:
        raise PycrictlError(
            f"the agent needs {quote(exc.name or '')}, which is not installed",
            hint="install it with: pip install 'pycrictl[agent]'",
        ) from None

    environ = app.env.environ

    def credential() -> Credential:
        return read_kubeconfig(kubeconfig) if kubeconfig else in_cluster(environ)

    kubelet = read_kubelet_config(kubelet_config) if kubelet_config else KubeletConfig("")
    size_limit_bytes, per_pod = copy_quotas(
        kubelet, container_copy_size_limit, container_copies_per_pod
    )
    settings = node_agent.AgentSettings(
        debugs=kubelet.debugs,
        listen=listen,
        node=node_name or environ.get("NODE_NAME", "") or credential().node,
        certificate_file=tls_cert,
        key_file=tls_key,
        peer_ca_file=peer_ca,
        peer_token_file=peer_token,
        namespace=peer_namespace or own_namespace() or "pycrictl",
        writes_events=events,
        spool_dir=spool_dir,
        spool_limit_bytes=spool_size,
        copy_size_limit_bytes=size_limit_bytes,
        copies_per_pod=per_pod,
    )

    @contextmanager
    def connect() -> Iterator[tuple[CriClient, CriClient | None]]:
        with ExitStack() as stack:
            client = stack.enter_context(app.open_client("runtime"))
            proxy = proxy_of(client, admin_socket)
            yield client, (stack.enter_context(client_of(proxy, client)) if proxy else None)

    log.begin(app)
    node_agent.run(settings, credential, connect, partial(notify, "READY=1", environ))
