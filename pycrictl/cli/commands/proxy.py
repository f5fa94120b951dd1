"""``pycrictl proxy``."""

from __future__ import annotations

import typer

from pycrictl.base.servicelog import write_to
from pycrictl.cli.context import AppContext
from pycrictl.cli.service_command import flags, options_of
from pycrictl.proxy import admin, settings
from pycrictl.proxy.app import run
from pycrictl.proxy.handover import READY_S
from pycrictl.runtime.cri.calls import endpoints


@options_of(settings.ProxySettings)
def proxy(ctx: typer.Context, **given: object) -> None:
    """Serve the CRI in front of a runtime: pull progress, a pull limit, copies.

    kubelet, crictl and pycrictl connect to the proxy's socket instead of the runtime's. Calls pass
    through unchanged. PullImage waits for a slot. ImagePullProgress, CopyToContainer and
    CopyFromContainer are answered by the proxy itself, with any runtime.

    To put the proxy in front of kubelet, change kubelet's configuration and restart kubelet; to
    take it out again, change that back:

    imageServiceEndpoint: unix:///run/pycrictl/cri.sock (pulls only),
    containerRuntimeEndpoint: the same (everything),
    serializeImagePulls: false (or kubelet itself sends one pull at a time).

    To check that it works, run "pycrictl -r unix:///run/pycrictl/cri.sock version", which shows the
    runtime's version, and "pycrictl pull-limiter status", which shows what is being pulled.

    Example: pycrictl proxy --upstream unix:///run/containerd/containerd.sock
    """
    app: AppContext = ctx.obj
    environ = app.env.environ
    found = settings.load(
        flags(app, given), lambda: endpoints.find(app.config.timeout_s).path, environ
    )
    if found.reloads:
        answer = admin.ask(found.admin_socket, "reload", timeout_s=2 * READY_S)
        app.env.note(f"process {answer['pid']} now serves")
        return
    write_to(app.env.stderr, found.log_format, found.log_level, environ)
    run(found, environ)
