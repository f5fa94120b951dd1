"""``pycrictl agent``."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pycrictl import noderoot
from pycrictl.agent.api.names import is_name
from pycrictl.cli import complete, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, client_of, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.errors import PycrictlError, UsageError
from pycrictl.kube import credential
from pycrictl.kube.kubelet_config import KubeletConfig, copy_quotas, read_kubelet_config
from pycrictl.logs import journal
from pycrictl.proxy.serve.systemd import is_journal, notify
from pycrictl.servicelog import LogFormat, LogLevel, write_to
from pycrictl.units import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pycrictl.cri.calls.client import CriClient
    from pycrictl.kube.credential import Credential

SPOOL_SIZE_BYTES: Final = 10 << 30
PEER_TOKEN: Final = "/var/run/secrets/progress.pycrictl.dev/token"


def agent(
    ctx: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="IP:PORT", help="Where to serve.")
    ] = "0.0.0.0:10281",
    node_name: Annotated[
        str,
        typer.Option(
            "--node-name",
            metavar="NAME",
            help="The name of this node (default: $NODE_NAME, else as the kubelet has it).",
        ),
    ] = "",
    kubeconfig: Annotated[
        str,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            autocompletion=complete.files,
            help="Connect to the API server with this kubeconfig (default: as the pod's service "
            "account).",
        ),
    ] = "",
    tls_cert: Annotated[
        str,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            autocompletion=complete.files,
            help="Serve with this certificate (default: one made at each start).",
        ),
    ] = "",
    tls_key: Annotated[
        str,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            autocompletion=complete.files,
            help="The key of --tls-cert.",
        ),
    ] = "",
    client_ca: Annotated[
        str,
        typer.Option(
            "--client-ca",
            metavar="FILE",
            autocompletion=complete.files,
            help="The CA of the cluster's users, for the kubelet's routes (default: as the API"
            " server says).",
        ),
    ] = "",
    peer_ca: Annotated[
        str,
        typer.Option(
            "--peer-ca",
            metavar="FILE",
            autocompletion=complete.files,
            help="The CA of all agents' certificates (default: that of the Secret"
            " pycrictl-agent-ca; with --tls-cert they are not verified).",
        ),
    ] = "",
    peer_token: Annotated[
        str,
        typer.Option(
            "--peer-token",
            metavar="FILE",
            autocompletion=complete.files,
            help="The service account's token for the audience progress.pycrictl.dev, which agents"
            " use to authenticate to each other.",
        ),
    ] = PEER_TOKEN,
    peer_namespace: Annotated[
        str,
        typer.Option(
            "--peer-namespace",
            metavar="NAME",
            help="The namespace of the agents' Service, pycrictl-agent (default: this pod's; none"
            " with --kubeconfig).",
        ),
    ] = "",
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespaces",
            metavar="NAME,...",
            help="Serve the pods of these namespaces only, so that Roles there are enough; the same"
            " for all agents; repeatable (default: all).",
        ),
    ] = None,
    admin_socket: AdminSocket = DEFAULT,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            help="Write Events about the pulls of this node; not if its proxy writes them.",
        ),
    ] = False,
    metrics_listen: Annotated[
        str,
        typer.Option(
            "--metrics-listen",
            metavar="IP:PORT",
            help="Serve /metrics for Prometheus, /livez and /readyz there, without TLS, for"
            " everyone (default: nowhere).",
        ),
    ] = "",
    spool_dir: Annotated[
        str,
        typer.Option(
            "--spool-dir",
            metavar="DIR",
            autocompletion=complete.directories,
            help="Offer copies of containers' files, and keep them there on their way; a restart"
            " takes them up (default: no copies).",
        ),
    ] = "",
    spool_size: Annotated[
        int,
        typer.Option(
            "--spool-size",
            parser=options.size,
            metavar="SIZE",
            show_default=False,
            help="Total space for copies there, such as 50Gi; 0 for no limit (default: 10Gi).",
        ),
    ] = SPOOL_SIZE_BYTES,
    container_copy_size_limit: Annotated[
        int | None,
        typer.Option(
            "--container-copy-size-limit",
            parser=options.size,
            metavar="SIZE",
            help="The most bytes of one copy, such as 2Gi; 0 for no limit (default).",
        ),
    ] = None,
    container_copies_per_pod: Annotated[
        int | None,
        typer.Option(
            "--container-copies-per-pod",
            parser=options.natural,
            metavar="N",
            help="The most copies of a pod at once; 0 for no limit (default).",
        ),
    ] = None,
    kubelet_config: Annotated[
        str,
        typer.Option(
            "--kubelet-config",
            metavar="FILE",
            autocompletion=complete.files,
            help="Take the quotas of copies that are not given from kubelet's configuration, such"
            " as /var/lib/kubelet/config.yaml; enableDebuggingHandlers: false there turns copies"
            " and streams off.",
        ),
    ] = "",
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Format of log lines.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level", help="Minimum level to log (default: info, with --debug debug)."
        ),
    ] = None,
) -> None:
    """Serve the node's image pulls to the cluster, as an API of the API server.

    One agent runs on each node, usually by a DaemonSet. "kubectl get imagepulls" then shows the
    pulls of all nodes, and any agent answers for all of them. It needs pycrictl[agent].

    It is idle until someone asks; only then does it query the runtime and list pods.

    Example: pycrictl agent --node-name n1 --kubeconfig /etc/kubernetes/kubelet.conf
    """
    app: AppContext = ctx.obj
    try:
        from pycrictl.agent import app as service  # noqa: PLC0415 - an optional extra
        from pycrictl.agent.serving import authorities  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise PycrictlError(
            f"the agent needs {quote(exc.name or '')}, which is not installed",
            hint="install it with: pip install 'pycrictl[agent]'",
        ) from None

    level = log_level or (LogLevel.DEBUG if app.flags.debug else LogLevel.INFO)
    environ, stderr = app.env.environ, app.env.stderr

    def load() -> Credential:
        if kubeconfig:
            return credential.read_kubeconfig(kubeconfig)
        return credential.in_cluster(environ)

    @contextmanager
    def connect() -> Iterator[tuple[CriClient, CriClient | None]]:
        with ExitStack() as stack:
            client = stack.enter_context(app.open_client("runtime"))
            proxy = proxy_of(client, admin_socket)
            yield client, (stack.enter_context(client_of(proxy, client)) if proxy else None)

    def named(name: str, what: str) -> str:
        if name and not is_name(name):
            raise UsageError(f"{what} cannot be called {quote(name)}")
        return name

    kubelet = read_kubelet_config(kubelet_config) if kubelet_config else KubeletConfig("")
    size_limit_bytes, copies_per_pod = copy_quotas(
        kubelet, container_copy_size_limit, container_copies_per_pod
    )
    settings = service.Settings(
        listen=service.address(listen, "listen"),
        node=named(
            node_name or environ.get("NODE_NAME", "") or load().node,
            "a node (--node-name, else $NODE_NAME)",
        ),
        certificate_file=tls_cert,
        key_file=tls_key,
        client_ca=authorities(client_ca, "client-ca") if client_ca else "",
        peer_ca=authorities(peer_ca, "peer-ca") if peer_ca else "",
        peer_token_file=peer_token,
        namespace=named(peer_namespace, "a namespace (--peer-namespace)")
        or ("" if kubeconfig else credential.own_namespace()),
        namespaces=tuple(
            named(name, "a namespace (--namespaces)") for name in options.split_list(namespaces)
        ),
        metrics_listen=service.address(metrics_listen, "metrics-listen")
        if metrics_listen
        else None,
        writes_events=events,
        spool_dir=spool_dir,
        spool_limit_bytes=spool_size,
        copy_size_limit_bytes=size_limit_bytes,
        copies_per_pod=copies_per_pod,
        debugs=kubelet.debugs,
    )
    write_to(stderr, log_format, level, has_priorities=is_journal(stderr, environ))
    read_journal = partial(journal.read, root=Path(noderoot.directory()))
    service.run(settings, load, connect, read_journal, lambda: notify("READY=1", environ))
