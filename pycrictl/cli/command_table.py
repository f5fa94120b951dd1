"""The table of all commands, which help and completion read without importing any.

A test imports every entry and compares it with its module: name, summary and aliases cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from enum import Enum, auto
from importlib import import_module
from typing import Final, NamedTuple

from pycrictl.errors import UnknownCommand
from pycrictl.signals import undisturbed

_PACKAGE: Final = "pycrictl.cli.commands"


class Grammar(Enum):
    CRICTL = auto()
    REMOTE = auto()
    NEW = auto()
    KUBECTL = auto()

    @property
    def is_interspersed(self) -> bool:
        """Whether options may follow positionals; else these end in another's command line."""
        return self is not Grammar.REMOTE

    @property
    def has_help_word(self) -> bool:
        """Whether a first positional ``help`` or ``h`` asks for help, as in crictl."""
        return self in (Grammar.CRICTL, Grammar.REMOTE)


class Entry(NamedTuple):
    """One command: where its function lives and what the root help says of it."""

    name: str
    target: str
    summary: str
    family: str
    aliases: tuple[str, ...] = ()
    grammar: Grammar = Grammar.CRICTL
    subcommands: tuple[Entry, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def row(self) -> tuple[str, str]:
        """Its line in a list of commands: all its names, and its summary."""
        return ", ".join(self.names), self.summary

    def load(self) -> Callable[..., None]:
        module, _, function = self.target.partition(":")
        with undisturbed():  # protobuf's C code may crash if an exception comes while it is loaded
            loaded = import_module(f"{_PACKAGE}.{module}")
        found: Callable[..., None] = getattr(loaded, function)
        return found

    def subcommand(self, word: str) -> Entry | None:
        return next((entry for entry in self.subcommands if word in entry.names), None)


HELP_WORDS: Final = ("help", "h")
"""crictl takes these as the first positional of every command."""

CONTAINERS: Final = "Containers"
SESSIONS: Final = "Sessions"
PODS: Final = "Pods"
IMAGES: Final = "Images"
NODE: Final = "Node"
NODE_SIDE: Final = "Node side"
SHELL: Final = "Shell"

POD_SCHEMA: Final = Entry(
    "jsonschema", "shell:pod", "Print the JSON Schema of pod configurations", PODS, ("js",)
)
SCHEMAS: Final = Entry(
    "jsonschema",
    "shell:pod_and_container",
    "Print the JSON Schemas of pod and container configurations",
    CONTAINERS,
    ("js",),
)

COMMANDS: Final = (
    Entry("ps", "listing:ps", "List containers, running ones by default", CONTAINERS),
    Entry("inspect", "inspecting:inspect", "Show the details of containers", CONTAINERS),
    Entry("logs", "logs:logs", "Show the logs of containers", CONTAINERS),
    Entry("stats", "measuring:stats", "Show the resource usage of containers", CONTAINERS),
    Entry(
        "events", "runtime:events", "Show container events as they happen", CONTAINERS, ("event",)
    ),
    Entry(
        "create",
        "lifecycle:create",
        "Create a container in a pod sandbox",
        CONTAINERS,
        subcommands=(SCHEMAS,),
    ),
    Entry(
        "run",
        "lifecycle:run",
        "Run a container in a new pod sandbox",
        CONTAINERS,
        subcommands=(SCHEMAS,),
    ),
    Entry("start", "lifecycle:start", "Start created containers", CONTAINERS),
    Entry("stop", "lifecycle:stop", "Stop running containers", CONTAINERS),
    Entry("rm", "lifecycle:rm", "Remove containers", CONTAINERS),
    Entry("update", "lifecycle:update", "Change the resource limits of containers", CONTAINERS),
    Entry("checkpoint", "lifecycle:checkpoint", "Checkpoint running containers", CONTAINERS),
    Entry(
        "exec", "sessions:exec_", "Run a command in containers", SESSIONS, grammar=Grammar.REMOTE
    ),
    Entry("attach", "sessions:attach", "Attach to a running container", SESSIONS),
    Entry(
        "port-forward", "sessions:port_forward", "Forward local ports to a pod sandbox", SESSIONS
    ),
    Entry(
        "debug",
        "debug:debug",
        "Run a shell beside a container that has none",
        SESSIONS,
        grammar=Grammar.REMOTE,
    ),
    Entry(
        "cp", "cp:cp", "Copy files to or from a running container", SESSIONS, grammar=Grammar.NEW
    ),
    Entry("pods", "listing:pods", "List pod sandboxes", PODS),
    Entry("inspectp", "inspecting:inspectp", "Show the details of pod sandboxes", PODS),
    Entry("statsp", "measuring:statsp", "Show the resource usage of pods", PODS),
    Entry("metricsp", "measuring:metricsp", "Show the metrics of pods", PODS),
    Entry(
        "metricdescs",
        "measuring:metricdescs",
        "List the pod metrics that the runtime provides",
        PODS,
    ),
    Entry("why", "diagnosing:why", "Show why pods are not running", PODS, grammar=Grammar.NEW),
    Entry("runp", "lifecycle:runp", "Start a new pod sandbox", PODS, subcommands=(POD_SCHEMA,)),
    Entry("stopp", "lifecycle:stopp", "Stop running pod sandboxes", PODS),
    Entry("rmp", "lifecycle:rmp", "Remove pod sandboxes and their containers", PODS),
    Entry("images", "listing:images", "List the images on the node", IMAGES, ("image", "img")),
    Entry("inspecti", "inspecting:inspecti", "Show the details of images", IMAGES),
    Entry("imagefsinfo", "measuring:imagefsinfo", "Show the disk usage of images", IMAGES),
    Entry("pull", "pull:pull", "Pull images from a registry", IMAGES, subcommands=(POD_SCHEMA,)),
    Entry("rmi", "rmi:rmi", "Remove images", IMAGES),
    Entry(
        "image-pull-progress",
        "image_pull_progress:image_pull_progress",
        "Show the progress of image pulls, whoever started them",
        IMAGES,
        grammar=Grammar.NEW,
    ),
    Entry("version", "runtime:version", "Show the runtime's name and version", NODE),
    Entry(
        "doctor",
        "diagnosing:doctor",
        "Examine the node: runtime, disks, clock, settings, proxy, leftovers, registries",
        NODE,
        grammar=Grammar.NEW,
    ),
    Entry(
        "top",
        "top:top",
        "Show the node live on one screen: problems first, then pulls, then the rest",
        NODE,
        grammar=Grammar.NEW,
    ),
    Entry("info", "runtime:info", "Show the status and configuration of the runtime", NODE),
    Entry(
        "runtime-config",
        "runtime:runtime_config",
        "Show the settings that kubelet takes from the runtime",
        NODE,
    ),
    Entry("config", "configuration:config", "Show or change the configuration file", NODE),
    Entry(
        "update-runtime-config",
        "runtime:update_runtime_config",
        "Update the runtime's configuration",
        NODE,
    ),
    Entry(
        "proxy",
        "proxy:proxy",
        "Serve the CRI in front of a runtime: pull progress, a pull limit, copies",
        NODE_SIDE,
        grammar=Grammar.NEW,
    ),
    Entry(
        "pull-limiter",
        "pull_limiter:pull_limiter",
        "Show or set a running proxy's limit on image pulls; show its last pulls",
        NODE_SIDE,
        grammar=Grammar.NEW,
    ),
    Entry(
        "agent",
        "agent:agent",
        "Serve the node's image pulls to the cluster, as an API of the API server",
        NODE_SIDE,
        grammar=Grammar.NEW,
    ),
    Entry("completion", "shell:completion", "Print a shell completion script", SHELL),
)

BY_NAME: Final = {name: entry for entry in COMMANDS for name in entry.names}

ELSEWHERE: Final = {
    "delete": "rm",
    "describe": "why",
    "df": "imagefsinfo",
    "get": "ps",
    "kill": "stop -t 0",
    "log": "logs",
    "login": "pull --creds",
    "ls": "ps",
    "prune": "rmi --prune",
}
"""Words of other programs."""


def find(word: str) -> Entry:
    """Return the command of a name.

    Raises:
        UnknownCommand: there is none; the hint names the nearest.
    """
    if word in BY_NAME:
        return BY_NAME[word]
    bare = word.lower()
    near = [ELSEWHERE[bare]] if bare in ELSEWHERE else get_close_matches(bare, BY_NAME, n=1)
    hint = f'did you mean "{near[0]}"?' if near else "'pycrictl --help' lists the commands"
    raise UnknownCommand(word, hint=hint)
