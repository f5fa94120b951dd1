"""kubectl's plugins: each is a command with its own program name.

kubectl finds plugins by their program names: ``kubectl-image_pull_progress`` is ``kubectl
image-pull-progress``, ``kubectl-container_cp`` is ``kubectl container-cp``.
kubectl's connection options are not interpreted here but handed on to it.
"""

from __future__ import annotations

from typing import Any, Final

from pycrictl.cli.argv import OptionSpec
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
_SHORT: Final = {"server": "s", "v": "v"}
HANDED_ON: Final = (
    "as", "as-group", "as-uid", "as-user-extra", "cache-dir", "certificate-authority",
    "client-certificate", "client-key", "cluster", "context", "disable-compression",
    "insecure-skip-tls-verify", "kubeconfig", "kuberc", "match-server-version", "password",
    "request-timeout", "server", "tls-server-name", "token", "user", "username", "v", "vmodule",
    "warnings-as-errors",
)  # fmt: skip
"""kubectl's connection options, as listed by ``kubectl options``."""

SPECS: Final = {
    spelling: OptionSpec(f"--{name}", name in _SWITCHES, name in _REPEATABLE)
    for name in HANDED_ON
    for spelling in {name, _SHORT.get(name, name)}
}
"""By spelling; unlike those of parameters, their names begin with dashes."""


def named(program: str) -> CommandSpec | None:
    bare = program.removeprefix(PREFIX).partition(".")[0].replace("_", "-")
    is_one = program.startswith(PREFIX)
    return next((entry for entry in PLUGINS if is_one and entry.name == bare), None)


def handed_on(values: dict[str, Any]) -> list[str]:
    """Take kubectl's options out of the values of a line; return them as words."""
    theirs = [(name, values.pop(name)) for name in [*values] if name.startswith("--")]
    return [
        f"{name}={str(item).lower() if isinstance(item, bool) else item}"
        for name, value in theirs
        for item in (value if isinstance(value, list) else [value])
    ]
