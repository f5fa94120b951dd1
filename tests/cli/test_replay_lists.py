"""Recordings of crictl's commands that answer with data; ``test_as_crictl`` replays all of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.captures import NEWER_FIELDS, Capture, documents, everything, in_order, runtimes
from tests.captures.calls import LOOKUPS
from tests.captures.fixtures import utc
from tests.cli.run import Run
from tests.fakecri import FakeServer

__all__ = ["utc"]

COMMANDS = frozenset(
    (
        *("ps", "pods", "images", "image", "img", "inspect", "inspecti", "inspectp", "info"),
        *("imagefsinfo", "stats", "statsp", "metricsp", "metricdescs", "events", "event"),
        "runtime-config",
    )
)

SHELL = {
    "x-logrus-tty": "crictl pods -s bogus",
    "x-env-config-missing": "crictl -c /nonexistent.yaml ps",
    "config-invalid-key-in-file": "crictl -c {folder}/foo.yaml ps",
    "config-invalid-default-ignored": "crictl -c {folder}/foo.yaml ps",
    "config-invalid-timeout-in-file": "crictl -c {folder}/timeout.yaml ps",
    "config-invalid-yaml": "crictl -c {folder}/bad.yaml ps",
    "endpoint-image-only-bad": "crictl --max-retries 0 -i unix:///nonexistent.sock ps",
    "images-filter-since-id": "crictl images -f since=340fc8c6ef9c",
    "inspecti-idprefix": "crictl inspecti -q 340fc8c6ef9c",
    "inspecti-yaml": "crictl inspecti -q -o yaml {tool}",
}
"""What is replayed of recordings that were made by a whole script."""

TOOL = "127.0.0.1:5555/tool@sha256:e1e2f4714f9d8c770fc03901d72e2879f678ab9ff753c49280236646e3474508"

ELSEWHERE = {
    "noconfig-default-endpoints": "looks for sockets at fixed places",
    "x-stats-watch-json": "needs Ctrl-C",
    "f-events-sigint": "needs Ctrl-C, which exits with 130, where crictl has 1",
    "m-images-after-prune": "another list of images, of which nothing else was recorded",
    "x-runp-cancel-timeout": "is about runp",
}
"""Recordings that other tests stand for."""

EARLY = 1_795_208_999.5
"""When "About a minute ago" was printed of the newest container."""
LATE = 1_795_209_010.0


def command_of(capture: Capture) -> str:
    """The first of COMMANDS that the recording's script runs with crictl, or nothing."""
    for part in re.split(r"[|;&()\n]|\$\(", capture.command):
        words = part.replace('"', " ").split()
        if "crictl" not in words:
            continue
        rest = words[words.index("crictl") + 1 :]
        while rest and rest[0].startswith("-"):
            rest = rest[1 if rest[0] in ("-D", "--debug", "--help") else 2 :]
        if rest and rest[0] in COMMANDS:
            return rest[0]
    return ""


CAPTURES = [capture for capture in everything() if command_of(capture)]
REPLAYED = [capture for capture in CAPTURES if capture.name not in ELSEWHERE]


def words_of(capture: Capture, folder: Path) -> list[str]:
    """The words behind ``crictl``, with the scene's variables put in."""
    command = SHELL.get(capture.name, capture.command)
    command = command.replace("{folder}", str(folder)).replace("{tool}", TOOL)
    command = runtimes.with_ids(command)
    words = shlex.split(command)
    assert words[0] == "crictl", f"{capture.name}: {command}"
    if {"stats", "statsp"} & set(words[1:2]):
        words += ["--seconds", "0"]  # the last one counts: nobody needs to wait here
    return words[1:]


def replay(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    is_prepared = capture.name.startswith("f-")
    is_early = capture.stdout is not None and "About a minute" in capture.stdout
    now = EARLY if is_early and not is_prepared else LATE
    if is_prepared:
        runtimes.prepared(fake, now)
        if capture.command.endswith(" x"):  # an ID which its lists do not have
            fake.withdraw(*LOOKUPS)
    elif capture.name.startswith("t-"):
        runtimes.empty(fake)
    else:
        runtimes.real(fake)
    config = folder / "crictl.yaml"
    timeout_s = 5 if is_prepared else 20
    config.write_text(f"runtime-endpoint: {fake.endpoint}\ntimeout: {timeout_s}\n")
    (folder / "foo.yaml").write_text("timeout: 1\nfoo: bar\n")
    (folder / "timeout.yaml").write_text("timeout: 2s\n")
    (folder / "bad.yaml").write_text("a: b: c\n")
    return Run(
        *words_of(capture, folder),
        environ={"CRI_CONFIG_FILE": str(config)},
        wall_clock=lambda: now,
    )


UNDER_BOTH_NAMES = (
    *(
        "f-ps-all",
        "f-ps-verbose",
        "f-pods",
        "pods-json",
        "f-images",
        "f-images-yaml",
        "f-stats-all",
    ),
    *("f-statsp", "inspect-two", "inspect-template-empty", "f-inspectp-table", "inspecti-yaml"),
    *("imagefsinfo-table", "f-info-quiet", "f-metricsp", "f-runtime-config", "f-events-json"),
)


@pytest.mark.parametrize("name", UNDER_BOTH_NAMES)
def test_same_output_under_the_own_name(fake: FakeServer, name: str, tmp_path: Path) -> None:
    (capture,) = [capture for capture in REPLAYED if capture.name == name]
    run = replay(fake, capture, tmp_path)
    assert run.code == capture.rc, run.stderr
    assert_same_text(run.stdout, capture)


def assert_same_text(text: str, capture: Capture) -> None:
    words = capture.command.split()
    recorded = capture.output.removeprefix("\x1b[2J\x1b[H")  # for terminals only
    if recorded.startswith(("{", "[")) and "go-template" not in words:
        assert [*documents(text, in_order)] == [*documents(recorded, in_order)]
    elif words[1] in ("stats", "statsp"):
        assert measured_rows(text) == measured_rows(recorded)
    else:
        for name in NEWER_FIELDS:
            text = re.sub(rf"^ *{name}: .*\n", "", text, flags=re.MULTILINE)
        # The recorder ended every output with a line break.
        assert text.removesuffix("\n") == recorded.removesuffix("\n")


def measured_rows(text: str) -> str:
    rows = re.sub(r"\b\d+(\.\d+)?([kMGT]?B)?(?= )", "#", text)
    return re.sub(r" {2,}", "  ", rows)
