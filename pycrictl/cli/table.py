"""The whole public surface on one screen, so that help and completion import no command.

A test imports every entry and compares it with its module: name, summary and aliases cannot drift.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple


class Kind(Enum):
    """Which grammar a command's words follow."""

    CRICTL = auto()
    REMOTE = auto()
    NEW = auto()


class Entry(NamedTuple):
    """One command: where its function lives and what the root help says of it."""

    name: str
    target: str
    summary: str
    family: str
    aliases: tuple[str, ...] = ()
    kind: Kind = Kind.CRICTL

    @property
    def module(self) -> str:
        """The full name of the module that holds the command."""
        return "pycrictl.cli.commands." + self.target.partition(":")[0]

    @property
    def function(self) -> str:
        """The name of the command's function in its module."""
        return self.target.partition(":")[2]


IMAGES: Final = "Images"
NODE: Final = "Node"

COMMANDS: Final = (
    Entry("images", "images:images", "List the images on the node", IMAGES, ("image", "img")),
    Entry("pull", "pull:pull", "Pull images from their registry", IMAGES),
    Entry(
        "image-pull-progress",
        "image_pull_progress:image_pull_progress",
        "Watch image pulls as they happen, whoever started them",
        IMAGES,
        kind=Kind.NEW,
    ),
    Entry("version", "version:version", "Show the runtime's name and version", NODE),
)

BY_NAME: Final = {name: entry for entry in COMMANDS for name in (entry.name, *entry.aliases)}
