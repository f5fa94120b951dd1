"""Recordings of exec, attach and port-forward; ``test_as_crictl`` replays those without signals."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc

from pycrictl._proto import cri_pb2
from tests.captures import Capture, everything, runtimes
from tests.captures.calls import LOOKUPS
from tests.cli.run import Run
from tests.cli.streaming_server import Played, playing
from tests.fakecri import FakeServer, Status

COMMANDS: Final = frozenset(("exec", "attach", "port-forward"))


SIGNALLED: Final = {
    "attach-7s": "prints what comes for some seconds",
    "m-attach-detach": "types the detach keys",
    "m-attach-sigint-twice": "the first Ctrl-C ends it with 130, where crictl swallows it",
    "m-exec-pty-resize": "has a terminal",
    "m-exec-sigint": "the first Ctrl-C ends it with 130, where crictl swallows it",
    "m-execsync-sigint": "Ctrl-C ends it with 130, where crictl has 1",
    "m-portforward-busy-one": "runs until a signal",
    "m-portforward-data": "runs until a signal",
    "m-portforward-refused": "a refused connection is reported, and forwarding goes on",
    "m-portforward-sigint-rc": "runs until a signal",
    "m-portforward-websocket": "WebSocket works here",
    "portforward-sigint": "runs until a signal",
    "x-exec-sigterm": "the first SIGTERM ends it, where crictl swallows it",
    "x-exec-stdin-large": "needs the real thing, and has it in the node's tests",
}
"""Recordings that are replayed on a real runtime, or have a test there."""

PLAYED: Final[Mapping[str, Played]] = {
    "exec-exit7": Played(code=7),
    "exec-ignore-errors": Played(code=9),
    "exec-ignore-errors-quiet": Played(code=9),
    "exec-name-filter": Played(b"127.0.0.1\n"),
    "exec-notfound-binary": Played(
        failure='exec: "nosuchbinary": executable file not found in $PATH: unknown'
    ),
    "exec-stdin": Played(is_cat=True),
    "exec-stdout-stderr": Played(b"out\n", b"err\n"),
}
"""What commands do, where their recorded output does not show it."""


def first_word(capture: Capture) -> str:
    """The first of COMMANDS that the recording runs with crictl, or nothing."""
    found = re.search(r"\bcrictl (exec|attach|port-forward)\b", capture.command)
    return found[1] if found else ""


CAPTURES: Final = [
    capture
    for capture in everything()
    if first_word(capture) or capture.name in SIGNALLED
    if not capture.command.startswith("crictl exec help")
]
REPLAYED: Final = [capture for capture in CAPTURES if capture.name not in SIGNALLED]


def words_of(capture: Capture) -> tuple[list[str], str]:
    command, stdin = capture.command, ""
    if command.startswith("echo data | "):
        command, stdin = command.removeprefix("echo data | "), "data\n"
    command = runtimes.with_ids(command)
    words = shlex.split(command)
    return words[words.index("crictl") + 1 :], stdin


def played(capture: Capture) -> Played:
    """The command that the recording ran: what it printed, less the IDs before it."""
    output = "" if capture.stdout is None else capture.output
    lines = [line for line in output.splitlines(keepends=True) if not line.endswith(":\n")]
    return PLAYED.get(capture.name, Played("".join(lines).encode()))


def replay(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    if capture.name.startswith("t-"):
        runtimes.empty(fake)
    else:
        runtimes.real(fake)
    config = folder / "crictl.yaml"
    timeout_s = 5 if capture.name.startswith("f-") else 20
    config.write_text(f"runtime-endpoint: {fake.endpoint}\ntimeout: {timeout_s}\n")
    words, stdin = words_of(capture)
    with playing(fake, played(capture)):
        fake.offer(
            "ExecSync", cri_pb2.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=7)
        )
        if capture.name == "f-exec-empty-url":
            fake.offer("Exec", None)
            fake.withdraw(*LOOKUPS)  # its container is in no list
        for rpc in capture.rpc:
            if rpc["code"] != "OK":
                fake.offer(rpc["rpc"], Status(grpc.StatusCode[rpc["code"]], "as recorded"))
        return Run(*words, environ={"CRI_CONFIG_FILE": str(config)}, stdin=stdin)
