"""Recordings that the program does not reproduce under the name ``crictl``, and why.

The page pycrictl-compat(7) lists each of these reasons.
"""

from __future__ import annotations

import re
from typing import Final

COMPLETION: Final = "Completion scripts complete options, values, IDs and names."
PROFILES: Final = "Profiles are not written."
RETRIES: Final = "`config` neither adds nor lists `max-retries` if the file lacks it."
SANDBOX_IMAGE: Final = "`--prune` keeps the image that pod sandboxes are made of."

DEVIATIONS: Final[dict[str, str]] = {
    "completion-bash": COMPLETION,
    "completion-zsh": COMPLETION,
    "config-list": RETRIES,
    "config-missing-file-creates": RETRIES,
    "config-missing-file-get-creates": RETRIES,
    "config-set-keeps-comments": RETRIES,
    "config-set-legacy": RETRIES,
    "f-inspect-yaml": "Integers above 2^53 stay exact.",
    "images-repo-only": "`images` selects by name, even if the runtime ignores the name.",
    "m-attach-detach": "Detaching is not reported as a failure.",
    "m-images-after-prune": SANDBOX_IMAGE,
    "m-portforward-refused": "A refused connection is reported, and forwarding continues.",
    "m-portforward-websocket": "`--transport websocket` works with released runtimes.",
    "m-rmi-prune": SANDBOX_IMAGE,
    "profile-cpu": PROFILES,
    "profile-mem": PROFILES,
    "x-debug-tty": "Lines of `--debug` are worded differently, and have no colors.",
}


def kind_of_messages(stderr: str) -> str:
    """Return the kind of the program's own messages, as ``Capture.told``; containers write too."""
    own = [line for line in stderr.splitlines() if line.startswith("crictl: ")]
    if any(not line.startswith(("crictl: info: ", "crictl: warning: ")) for line in own):
        return "error"
    return "note" if own else ""


def is_page(stdout: str) -> bool:
    """Whether an output is a help page, possibly below an error about the command line."""
    return re.match(r"(Incorrect Usage: .+\n\n)?NAME:\n   crictl\b", stdout) is not None
