"""Puts man pages and completions where pip and pipx install them: whatever files are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "pycrictl.bash": "share/bash-completion/completions/pycrictl",
    "_pycrictl": "share/zsh/site-functions/_pycrictl",
    "pycrictl.fish": "share/fish/vendor_completions.d/pycrictl.fish",
}


class SharedData(BuildHookInterface[Any]):
    """A build hook of hatchling, for the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the files; called before a wheel is built."""
        root = Path(self.root)
        shared: dict[str, str] = build_data["shared_data"]
        for page in sorted(root.glob("man/*.[157]")):
            shared[str(page)] = f"share/man/man{page.suffix[1:]}/{page.name}"
        for name, target in COMPLETIONS.items():
            if (root / "completions" / name).exists():
                shared[str(root / "completions" / name)] = target
