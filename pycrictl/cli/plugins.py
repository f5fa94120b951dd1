"""kubectl's plugins: each is a command with its own program name.

kubectl finds plugins by their program names: ``kubectl-image_pull_progress`` is ``kubectl
image-pull-progress``, ``kubectl-container_cp`` is ``kubectl container-cp``.
kubectl's connection options are not interpreted here but handed on to it.
"""

from __future__ import annotations

from typing import Final

from typer.core import TyperOption

from pycrictl.cli.command_table import CommandSpec, Grammar

KUBECTL: Final = "kubectl"
PREFIX: Final = "kubectl-"

PLUGINS: Final = (
    CommandSpec(
        "image-pull-progress",
        "kubectl_image_pull_progress",
        "Show the progress of image pulls in a cluster",
        Grammar.KUBECTL,
    ),
    CommandSpec(
        "container-cp",
        "kubectl_container_cp",
        "Copy files to or from a container in a cluster",
        Grammar.KUBECTL,
    ),
    CommandSpec("why", "kubectl_why", "Show why pods are not running", Grammar.KUBECTL),
)

_SWITCHES: Final = (
    "disable-compression",
    "insecure-skip-tls-verify",
    "match-server-version",
    "warnings-as-errors",
)
_REPEATABLE: Final = ("as-group", "as-user-extra")
_SHORT: Final = {"server": "s"}
HANDED_ON: Final = (
    "as", "as-group", "as-uid", "as-user-extra", "cache-dir", "certificate-authority",
    "client-certificate", "client-key", "cluster", "context", "disable-compression",
    "insecure-skip-tls-verify", "kubeconfig", "kuberc", "match-server-version", "password",
    "request-timeout", "server", "tls-server-name", "token", "user", "username", "v", "vmodule",
    "warnings-as-errors",
)  # fmt: skip
"""kubectl's connection options, as listed by ``kubectl options``."""

OPTIONS: Final = tuple(
    TyperOption(
        param_decls=[f"--{name}", *([f"-{_SHORT[name]}"] if name in _SHORT else [])],
        is_flag=name in _SWITCHES,
        multiple=name in _REPEATABLE,
    )
    for name in HANDED_ON
)


def named(program: str) -> CommandSpec | None:
    bare = program.removeprefix(PREFIX).partition(".")[0].replace("_", "-")
    is_plugin = program.startswith(PREFIX)
    return next((entry for entry in PLUGINS if is_plugin and entry.name == bare), None)
