"""Place the existing man pages, completions and units where pip installs them.

Completions go into the package as well, from which ``pycrictl completion`` prints them.
"""

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
        """Add the files; called before a wheel is built.

        Args:
            version: ``standard``, or ``editable`` for a wheel that points to the tree.
            build_data: the maps ``shared_data`` and ``force_include``, from paths to places.
        """
        root = Path(self.root)
        shared: dict[str, str] = build_data["shared_data"]
        for page in sorted(root.glob("man/*.[157]")):
            shared[str(page)] = f"share/man/man{page.suffix[1:]}/{page.name}"
        for unit in sorted(root.glob("packaging/pycrictl-*.*")):
            shared[str(unit)] = f"lib/systemd/system/{unit.name}"
        for name, target in COMPLETIONS.items():
            script = root / "completions" / name
            if script.exists():
                shared[str(script)] = target
                if version != "editable":
                    build_data["force_include"][str(script)] = f"pycrictl/completions/{name}"
