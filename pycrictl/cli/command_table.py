"""The table of all commands and plugins, which help and completion read without importing them.

A test imports every entry and compares it with its module: name, summary and aliases cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from enum import Enum, auto
from functools import partial
from importlib import import_module
from typing import Final, NamedTuple

from typer.core import TyperOption

from pycrictl.base.errors import UnknownCommand
from pycrictl.base.signals import undisturbed

_PACKAGE: Final = "pycrictl.cli.commands"


class Grammar(Enum):
    CRICTL = auto()
    REMOTE = auto()
    NEW = auto()
    KUBECTL = auto()

    @property
    def is_interspersed(self) -> bool:
        """Whether options may follow positionals; in REMOTE, those end with a remote command."""
        return self is not Grammar.REMOTE

    @property
    def has_help_word(self) -> bool:
        """Whether a first positional ``help`` or ``h`` asks for help, as in crictl."""
        return self in (Grammar.CRICTL, Grammar.REMOTE)


class CommandSpec(NamedTuple):
    """A command; ``target`` is MODULE, or MODULE:FUNCTION if the function has another name."""

    name: str
    target: str
    summary: str
    grammar: Grammar = Grammar.CRICTL
    aliases: tuple[str, ...] = ()
    subcommands: tuple[CommandSpec, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def row(self) -> tuple[str, str]:
        return ", ".join(self.names), self.summary

    def load(self) -> Callable[..., None]:
        module, _, function = self.target.partition(":")
        with undisturbed():  # an exception while protobuf's C code is loaded may crash it
            loaded = import_module(f"{_PACKAGE}.{module}")
        command: Callable[..., None] = getattr(loaded, function or self.name.replace("-", "_"))
        return command

    def subcommand(self, word: str) -> CommandSpec | None:
        return next((entry for entry in self.subcommands if word in entry.names), None)


_new: Final = partial(CommandSpec, grammar=Grammar.NEW)
"""Makes a command that crictl does not have."""

HELP_WORDS: Final = ("help", "h")
"""crictl accepts these as the first positional of every command."""

POD_SCHEMA: Final = CommandSpec(
    "jsonschema", "shell:pod", "Print the JSON Schema of pod configurations", aliases=("js",)
)
SCHEMAS: Final = CommandSpec(
    "jsonschema",
    "shell:pod_and_container",
    "Print the JSON Schemas of pod and container configurations",
    aliases=("js",),
)

LIMITER: Final = (
    _new(
        "status",
        "pull_limiter",
        "Show the limit, the pulls in progress, the queue, and kubelet's own limit",
    ),
    _new(
        "set",
        "pull_limiter:set_limit",
        "Change the limit now, but only until the proxy is reloaded or restarted",
    ),
    _new("cancel", "pull_limiter", "Drop queued pulls of an image or a pod"),
    _new(
        "history",
        "pull_limiter",
        "Show the last 10,000 pulls, including those of earlier runs of the proxy",
    ),
)

FAMILIES: Final = {
    "Containers": (
        CommandSpec("ps", "listing", "List containers, running ones by default"),
        CommandSpec("inspect", "inspecting", "Show the details of containers"),
        CommandSpec("logs", "logs", "Show the logs of containers"),
        CommandSpec("stats", "measuring", "Show the resource usage of containers"),
        CommandSpec(
            "events", "runtime", "Show container events as they happen", aliases=("event",)
        ),
        CommandSpec(
            "create", "launch", "Create a container in a pod sandbox", subcommands=(SCHEMAS,)
        ),
        CommandSpec(
            "run", "launch", "Run a container in a new pod sandbox", subcommands=(SCHEMAS,)
        ),
        CommandSpec("start", "lifecycle", "Start created containers"),
        CommandSpec("stop", "lifecycle", "Stop running containers"),
        CommandSpec("rm", "lifecycle", "Remove containers"),
        CommandSpec("update", "lifecycle", "Change the resource limits of containers"),
        CommandSpec("checkpoint", "lifecycle", "Checkpoint running containers"),
    ),
    "Sessions": (
        CommandSpec("exec", "exec:exec_", "Run a command in containers", Grammar.REMOTE),
        CommandSpec("attach", "attach_forward", "Attach to a running container"),
        CommandSpec("port-forward", "attach_forward", "Forward local ports to a pod sandbox"),
        CommandSpec(
            "debug", "debug", "Run a shell beside a container that has none", Grammar.REMOTE
        ),
        _new("cp", "cp", "Copy files to or from a running container"),
    ),
    "Pods": (
        CommandSpec("pods", "listing", "List pod sandboxes"),
        CommandSpec("inspectp", "inspecting", "Show the details of pod sandboxes"),
        CommandSpec("statsp", "measuring", "Show the resource usage of pods"),
        CommandSpec("metricsp", "measuring", "Show the metrics of pods"),
        CommandSpec("metricdescs", "measuring", "List the pod metrics that the runtime provides"),
        _new("why", "diagnosing", "Show why pods are not running"),
        CommandSpec("runp", "launch", "Start a new pod sandbox", subcommands=(POD_SCHEMA,)),
        CommandSpec("stopp", "lifecycle", "Stop running pod sandboxes"),
        CommandSpec("rmp", "lifecycle", "Remove pod sandboxes and their containers"),
    ),
    "Images": (
        CommandSpec("images", "listing", "List the images on the node", aliases=("image", "img")),
        CommandSpec("inspecti", "inspecting", "Show the details of images"),
        CommandSpec("imagefsinfo", "measuring", "Show the disk usage of images"),
        CommandSpec("pull", "pull", "Pull images from a registry", subcommands=(POD_SCHEMA,)),
        _new("save", "archives", "Save images as an archive"),
        _new("load", "archives", "Load images from an archive"),
        _new("tag", "archives", "Give an image another name"),
        CommandSpec("rmi", "lifecycle", "Remove images"),
        _new(
            "image-pull-progress",
            "image_pull_progress",
            "Show the progress of image pulls, whoever started them",
        ),
    ),
    "Node": (
        CommandSpec("version", "runtime", "Show the runtime's name and version"),
        _new(
            "doctor",
            "diagnosing",
            "Examine the node: runtime, disks, clock, settings, proxy, registries",
        ),
        _new(
            "top",
            "top",
            "Show the node live on one screen: problems first, then pulls, then the rest",
        ),
        CommandSpec("info", "runtime", "Show the status and configuration of the runtime"),
        CommandSpec(
            "runtime-config", "runtime", "Show the settings that kubelet takes from the runtime"
        ),
        CommandSpec("config", "configuration", "Show or change the configuration file"),
        CommandSpec("update-runtime-config", "runtime", "Update the runtime's configuration"),
    ),
    "Node side": (
        _new(
            "proxy",
            "proxy",
            "Serve the CRI in front of a runtime: pull progress, a pull limit, copies",
        ),
        _new(
            "pull-limiter",
            "pull_limiter",
            "Show or set a running proxy's limit on image pulls; show its last pulls",
            subcommands=LIMITER,
        ),
        _new(
            "agent",
            "agent",
            "Serve the node's image pulls to the cluster through the API server",
        ),
    ),
    "Shell": (CommandSpec("completion", "shell", "Print a shell completion script"),),
}
"""All commands under the headings of the root help."""

COMMANDS: Final = tuple(entry for family in FAMILIES.values() for entry in family)
BY_NAME: Final = {name: entry for entry in COMMANDS for name in entry.names}


def find(word: str) -> CommandSpec:
    """Return the command with this name or alias; raise UnknownCommand with a hint."""
    if word in BY_NAME:
        return BY_NAME[word]
    near = get_close_matches(word.lower(), BY_NAME, n=1)
    hint = f'did you mean "{near[0]}"?' if near else "'pycrictl --help' lists the commands"
    raise UnknownCommand(word, hint=hint)


# kubectl finds plugins by their program names: kubectl-image_pull_progress is "kubectl
# image-pull-progress". kubectl's connection options are not interpreted but handed on to kubectl.

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

KUBECTL_OPTIONS: Final = tuple(
    TyperOption(
        param_decls=[f"--{name}", *([f"-{_SHORT[name]}"] if name in _SHORT else [])],
        is_flag=name in _SWITCHES,
        multiple=name in _REPEATABLE,
    )
    for name in HANDED_ON
)


def plugin_of(program: str) -> CommandSpec | None:
    bare = program.removeprefix(PREFIX).partition(".")[0].replace("_", "-")
    is_plugin = program.startswith(PREFIX)
    return next((entry for entry in PLUGINS if is_plugin and entry.name == bare), None)
