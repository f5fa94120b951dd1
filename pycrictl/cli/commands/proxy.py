"""``pycrictl proxy``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import tomli
import typer

from pycrictl.base import noderoot
from pycrictl.base.address import Address
from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.units import quote, quote_path
from pycrictl.cli import options
from pycrictl.cli import service_options as service
from pycrictl.cli.admin_socket import DEFAULT as DEFAULT_ADMIN
from pycrictl.cli.context import AppContext
from pycrictl.cli.tree import canonical
from pycrictl.copy.tree.content import DEFAULT_FOLDER
from pycrictl.node.kubelet import KubeletConfig, copy_quotas, read_kubelet_config
from pycrictl.proxy import admin
from pycrictl.proxy.app import run
from pycrictl.proxy.handover import READY_S
from pycrictl.proxy.pulls.pull_calls import Policy
from pycrictl.proxy.settings import DEFAULT_LISTEN, DEFAULT_PATH, ProxySettings
from pycrictl.runtime.cri.calls import endpoints

ANY_PORT: Final = Address("127.0.0.1", 0)
NO_KEYS: Final = ("config", "reload")
"""Options that are not keys of the configuration file."""


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Fields of ``ProxySettings``, or None if not given."""

    upstream: Annotated[
        str | None,
        service.socket_option(
            "--upstream", help="The runtime's socket (default: the first that answers)."
        ),
    ] = None
    listen: Annotated[str, service.socket_option("--listen", help="The proxy's own socket.")] = (
        DEFAULT_LISTEN
    )
    limit: Annotated[
        int | None,
        service.count_option(
            "--max-parallel-image-pulls",
            help="Pull at most N images at once (default: 0, no limit).",
        ),
    ] = None
    policy: Annotated[
        Policy,
        typer.Option("--when-full", help="If no slot is free: wait in line, or retry a few times."),
    ] = Policy.WAIT
    retry_interval_s: Annotated[
        float,
        options.duration_option(
            "--retry-interval",
            help="With retry: the pause between tries (default: 10s).",
            show_default=False,
        ),
    ] = 10.0
    retries: Annotated[
        int, service.count_option("--retries", help="With retry: how many retries.")
    ] = 3
    kubelet_config: Annotated[
        str,
        options.file_option(
            "--kubelet-config",
            help="Take the pull limit and the copy quotas from kubelet's configuration, such as"
            " /var/lib/kubelet/config.yaml.",
        ),
    ] = ""
    drain_timeout_s: Annotated[
        float | None,
        options.duration_option(
            "--drain-timeout",
            help="How long pulls and copies may continue after SIGTERM (default: no limit).",
        ),
    ] = None
    admin_socket: Annotated[
        str, service.socket_option("--admin-socket", help="Socket for pull-limiter.")
    ] = DEFAULT_ADMIN
    stream_address: Annotated[
        Address,
        service.address_option(
            "--stream-address",
            help="Address to serve streams on (default: 127.0.0.1:0, any port).",
        ),
    ] = ANY_PORT
    copy_size_limit_bytes: service.CopySizeLimit = None
    copies_per_pod: service.CopiesPerPod = None
    spool_dir: Annotated[
        str,
        typer.Option("--spool-dir", metavar="DIR", help="Where to spool copies out of containers."),
    ] = DEFAULT_FOLDER
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="Where to keep the history of pulls"
            " (default: the service's StateDirectory=; outside a service, no history).",
        ),
    ] = None
    metrics_address: service.MetricsListen = None
    events: Annotated[
        str,
        typer.Option(
            "--events",
            metavar="kubelet|FILE",
            help="Write Events about the pulls of pods, with the kubelet's own kubeconfig, or with"
            " that of FILE (default: no Events).",
        ),
    ] = ""


def _read_file(ctx: typer.Context, path: str) -> str:
    """Make the keys of the file the defaults of the options; return the file's path."""
    name, values = noderoot.given(path or DEFAULT_PATH), {}
    shown = quote_path(name)
    try:
        values = tomli.loads(Path(name).read_bytes().decode())
    except FileNotFoundError:
        if path:
            raise ConfigError(f"config file {shown} does not exist") from None
    except OSError as exc:
        raise ConfigError(f"cannot read the config file {shown}: {reason_of(exc)}") from None
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{shown} is not valid TOML: {exc}") from None
    keys = {
        canonical(option).removeprefix("--"): option.name or "" for option in ctx.command.params
    }
    for key in values:
        if key not in keys or key in NO_KEYS:
            known = ", ".join(name for name in keys if name not in NO_KEYS)
            raise ConfigError(f"{shown}: unknown key {quote(key)}", hint=f"known keys: {known}")
    # As words, which the options read as those of a command line.
    ctx.default_map = {keys[key]: str(value) for key, value in values.items()}
    return name


@options.with_records
def proxy(
    ctx: typer.Context,
    given: ProxyOptions,
    log: service.LogOptions,
    config: Annotated[
        str,
        options.file_option(
            "--config",
            help=f"TOML file with these options as keys (default: {DEFAULT_PATH}).",
            callback=_read_file,
            is_eager=True,
        ),
    ] = "",
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Replace the running proxy with a new one, started with the same command line; no"
            " call fails.",
        ),
    ] = False,
) -> None:
    """Serve the CRI in front of a runtime: pull progress, a pull limit, copies.

    kubelet, crictl and pycrictl connect to the proxy's socket instead of the runtime's. Calls pass
    through unchanged, but PullImage waits for a slot. ImagePullProgress, CopyToContainer and
    CopyFromContainer are answered by the proxy itself, with any runtime.

    To put the proxy in front of kubelet, set imageServiceEndpoint (for image calls only) or
    containerRuntimeEndpoint (for all calls) to unix:///run/pycrictl/cri.sock in kubelet's
    configuration, in both cases also serializeImagePulls: false (otherwise kubelet sends one pull
    at a time), and restart kubelet. To take the proxy out again, undo these changes.

    To check that it works, run "pycrictl -r unix:///run/pycrictl/cri.sock version", which shows the
    runtime's version, and "pycrictl pull-limiter status", which shows what is being pulled.

    Example: pycrictl proxy --upstream unix:///run/containerd/containerd.sock
    """
    app: AppContext = ctx.obj
    if reload:
        answer = admin.ask(given.admin_socket, "reload", timeout_s=2 * READY_S)
        app.env.note(f"process {answer['pid']} now serves")
        return
    settings = settings_of(ctx, given, config)
    log.begin(app)
    run(settings, app.env.environ)


def settings_of(ctx: typer.Context, given: ProxyOptions, config: str) -> ProxySettings:
    """Return the effective settings: those not given are the kubelet's, or found on the node."""
    app: AppContext = ctx.obj
    kubelet = KubeletConfig("")
    if given.kubelet_config:
        kubelet = read_kubelet_config(given.kubelet_config)
    limit, origin = given.limit, config
    if limit is None:
        limit, origin = kubelet.limit, given.kubelet_config
    elif (source := ctx.get_parameter_source("limit")) and source.name == "COMMANDLINE":
        origin = "flag"
    size, per_pod = copy_quotas(kubelet, given.copy_size_limit_bytes, given.copies_per_pod)
    upstream, state_dir = given.upstream, given.state_dir
    if upstream is None:
        upstream = endpoints.find(app.config.timeout_s).path
    if state_dir is None:
        # By default only a service keeps a history: a proxy tried by hand leaves no files.
        state_dir = app.env.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    effective: dict[str, Any] = {
        "upstream": noderoot.given(upstream),
        "limit": limit or 0,
        "limit_origin": origin if limit is not None else "default",
        "copy_size_limit_bytes": size,
        "copies_per_pod": per_pod,
        "state_dir": state_dir,
    }
    return ProxySettings(**asdict(given) | effective)
