"""Show pulls with their place in line, why a pod fails, and a copy without shell or tar."""

from __future__ import annotations

import sys
from typing import Final

from tests.waiting import wait_until

from .lab import MIB
from .stage import API, BATCH, WEB, Failed, Stage, perform

RATE_MIB_PER_S: Final = 4.5
COMMAND_TIMEOUT_S: Final = 90


def main(rate_mib_per_s: float = RATE_MIB_PER_S) -> int:
    status = perform("demo", lambda stage: _show(stage, rate_mib_per_s))
    if not status:
        _say(
            "\nThe node is gone again. Try next:\n"
            "  make playground    such a node and a shell to try commands in\n"
            "  README.md          how to install it, and what else there is"
        )
    return status


def _show(stage: Stage, rate_mib_per_s: float) -> None:
    stage.keep(API)
    stage.lab.registry.limit(rate_mib_per_s * MIB)
    stage.keep(WEB)
    wait_until(stage.lab.node.store.ingests)
    stage.keep(BATCH)
    _say(
        "\nTwo pods need an image, and the proxy lets one be pulled at once."
        "\nWho waits has a place in line, and knows who is ahead:\n"
    )
    _run(stage, "pycrictl image-pull-progress")
    _say("\nA third one does not run. Why?\n")
    _run(stage, "pycrictl why default/api", status=1)
    _say("\nThe container of default/web has no shell and no tar. Copies need neither:\n")
    _run(stage, "pycrictl cp web:/srv/index.html .")
    _run(stage, "cat index.html")


def _run(stage: Stage, line: str, *, status: int = 0) -> None:
    _say(f"$ {line}")
    output = stage.start(*line.split()).wait(COMMAND_TIMEOUT_S)
    if output != status:
        raise Failed(f"'{line}' ended with status {output}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
