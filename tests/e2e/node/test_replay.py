"""The recordings of crictl on a real containerd, replayed by this program as ``crictl``.

The scene is built anew, and every recorded command that returns data or changes state runs in it,
in the order of the recordings. Output, exit status and kind of messages are compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.captures import Capture, capture, documents, everything
from tests.captures.calls import BEFORE_ANY_CALL
from tests.captures.deviations import DEVIATIONS, is_page, kind_of_messages
from tests.once import made_once

from .lab import Lab
from .scene import Outcome, Scene, recorded_names

pytestmark = pytest.mark.timeout(400)
"""The first test to run waits for all commands of the story."""

NOT_HERE: Final = frozenset(("completion",))
"""Completion has tests of its own."""

ELSEWHERE: Final = {
    "attach-7s": "would take 7 s; test_sessions attaches",
    "inspect-ambiguous-prefix": "the IDs of the day decide; test_bad_input has ambiguous ones",
    "noconfig-default-endpoints": "looks for sockets at fixed places",
}

CHANGES: Final = (
    "crictl runp $S/mut-pod.json > /scene/MP",
    "m-create",
    "m-create-with-pull",
    "crictl create $(cat /scene/MP) $S/mut-c.json $S/mut-pod.json > /scene/MC",
    "crictl create $(cat /scene/MP) $S/mut-it.json $S/mut-pod.json > /scene/MI",
    "m-create-tty",
    "m-create-bad-emptyimage",
    "m-create-bad-enum",
    "m-create-bad-noimage",
    "m-create-bad-nometa",
    "m-create-odd-camel",
    "m-start-two",
    "m-start-rest",
    "crictl stop -t 5 $(cat /scene/MA)",
    "m-stop-already",
    "m-rm-partial",
    "m-rm-running-prefix",
    "m-rm-force",
    "crictl stop -t 0 $(cat /scene/MI)",
    "m-rm-keeplogs",
    "m-rmp-running",
    "crictl stopp $(cat /scene/MP)",
    "m-rmp",
    "m-runp-bad-nons",
    "m-run-nopull",
    "crictl rmp -f $(crictl pods -q --name mut2)",
    "m-pull-private-creds",
    "m-pull-private-auth",
    "m-pull-private-env",
    "m-pull-username-pty",
    "m-rmi-partial",
    "crictl rmi $(crictl images -q -f dangling=true | head -1)",
    "m-rmi-prune",
    "m-images-after-prune",
)
"""The recordings of changes in a possible order, with the commands that are needed between them."""

TEARDOWN: Final = (
    "t-stop-all",
    "t-stop-all-none",
    "t-rm-all-partial",
    "crictl rm -fa",
    "t-rm-all-empty",
    "t-rmp-all-running",
    "crictl rmp -fa",
    "t-rmp-all-empty",
    "t-pods-verbose-empty",
    "t-inspectp-empty",
    "t-stats-empty",
    "t-rmi-all",
    "t-rmi-all-empty",
    "t-rmi-prune-empty",
    "t-images-empty-verbose",
    "t-inspecti-empty",
)

UNORDERED: Final = re.compile(r"crictl (rm|rmp|rmi|stop|stats|exec --name)\b")
"""Commands whose order of output depends on what ends first, the runtime's list, or IDs."""

SLOW: Final = (
    "exec-sync-timeout", "logs-follow-sigint", "portforward-sigint",
    "noconfig-debug-retry", "noconfig-flag-endpoint-nosocket",
    "stats-all", "stats-id", "stats-pod", "stats-positional",
)  # fmt: skip
"""Recordings that wait for seconds and change nothing: they run in parallel with the others."""

MEASURED: Final = ("stats", "t-stats", "imagefsinfo")
"""Prefixes of the names of recordings whose numbers are measurements."""

MASKS: Final = tuple(
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\b[0-9a-f]{64}\b", "<hex>"),
        (r"\b20\d\d-\d\d-\d\d[T ][\d:.]+(Z| [+-]\d{4} \w+)?", "<time>"),
        (r'(?<=")\d{19}(?=")|(?<=\]: )\d{19}\b', "<time>"),
        # containerd measures the disk of a new container within ten seconds; until then:
        (r'(?<=timestamp: ")0(?=")|(?<="timestamp": ")0(?=")', "<time>"),
        (r"(About an? \w+|Less than a second|\d+ \w+) ago\b", "<age>"),
        (r'/[^\s"]*io\.containerd\.(grpc|snapshotter)\.v1\.(cri|overlayfs)', "<node>"),
        (r'("runtimeOptions": ?){[^}]*}', r"\1{}"),
        (r'("pid": ?)\d{2,}', r"\g<1>0"),
        (r"/proc/\d+/", "/proc/<pid>/"),
        (r'\s"author": "scene",', ""),
        (r'("created_by": )"\w+"', r'\1"<who>"'),
        (r"\b\d+(\.\d+)?[kMGT]?B\b", "<bytes>"),
        (r'([Ss]ize"?: )"?\d+"?', r'\1"<bytes>"'),
        (r"(?m)(^line \d+\n)+", "line <number>\n"),
        (r":\d+ -> 9090", ":<port> -> 9090"),
        (r"root +(root|0)\b", "root root"),
    )
)
"""What varies between scenes: IDs, times, processes, free ports, the number of log lines, names of
groups, and sizes, which include busybox."""


@dataclass(frozen=True)
class Story:
    outcomes: Mapping[str, Outcome]
    names: Mapping[str, str]


def replayed() -> list[str]:
    names = [
        recorded.name
        for recorded in everything()
        if recorded.name.partition("-")[0] not in ("f", "l", "x", "m", "t")
        and not NOT_HERE.intersection(re.split(r"[\s;()]+", recorded.command))
        and recorded.name not in ELSEWHERE
    ]
    # Commands that change a container run after those that show it.
    return sorted(names, key=lambda name: name.startswith("update"))


STEPS: Final = (*replayed(), *CHANGES, *TEARDOWN)
REPLAYED: Final = [step for step in STEPS if " " not in step]


@pytest.fixture(scope="session")
def story(shared_lab: Lab, run_folder: Path) -> Story:
    return made_once(run_folder / "story", make_story)


def make_story() -> Story:
    with Lab() as lab, ThreadPoolExecutor() as pool:
        scene = Scene(lab)
        scene.build()
        beside = {step: pool.submit(scene.run, command_of(step), in_shell=True) for step in SLOW}
        ended: dict[str, Outcome] = {}
        for step in STEPS:
            if step in CHANGES:
                ended |= {slow: outcome.result() for slow, outcome in beside.items()}
                beside.clear()
            if step == "t-rmi-all":
                scene.pull_images()
            if step not in SLOW:
                ended[step] = scene.run(command_of(step))
        outcomes = {
            step: Outcome(done.code, scene.as_recorded(done.stdout), done.stderr)
            for step, done in ended.items()
        }
        return Story(outcomes, scene.names())


def command_of(step: str) -> str:
    command = step if " " in step else capture(step).command
    # Beside other tests a start takes long, and input before the prompt is dropped; a pull takes
    # long enough for bars, which crictl does not have.
    command = command.replace("(sleep 1;", "(sleep 5;").replace("-s INT 2", "-s INT 6")
    return command.replace("pull -u u1", "pull --progress none -u u1")


def test_replay(story: Story) -> None:
    bad = []
    for name in REPLAYED:
        recorded, outcome = capture(name), story.outcomes[name]
        wanted: tuple[Any, ...] = (recorded.rc, recorded.told)
        actual: tuple[Any, ...] = (outcome.code, kind_of_messages(outcome.stderr))
        if recorded.is_help:
            wanted += (True,)
            actual += (is_page(outcome.stdout),)
        if recorded.stdout is not None and not recorded.is_help:
            wanted += (comparable(recorded, recorded.output, recorded_names()),)
            actual += (comparable(recorded, outcome.stdout, story.names),)
        if (actual != wanted) is not (name in DEVIATIONS):
            bad.append(f"{name}\n  wanted {wanted}\n  actual {actual}\n{outcome.stderr}")
        if "-D" not in recorded.command and "Traceback" in outcome.stderr:
            bad.append(f"{name}\n{outcome.stderr}")
    assert not bad, "\n".join(bad)


def test_what_lies_between_the_recordings_works(story: Story) -> None:
    between = {step: outcome for step, outcome in story.outcomes.items() if " " in step}
    assert len(between) == len(STEPS) - len(REPLAYED)
    assert {step for step, outcome in between.items() if outcome.code} == set()


def test_the_lists_hold_only_recordings() -> None:
    assert len(REPLAYED) > 200
    assert set(REPLAYED) >= BEFORE_ANY_CALL
    left_out = {
        recorded.name
        for recorded in everything()
        if recorded.name.startswith(("m-", "t-")) and recorded.name not in REPLAYED
    }
    # They need a signal or a terminal; test_sessions and its neighbours cover them.
    streaming = ("m-attach", "m-exec", "m-logs", "m-portforward", "t-exec")
    assert all(name.startswith(streaming) for name in left_out)


def comparable(recorded: Capture, text: str, names: Mapping[str, str]) -> Any:
    """Return the comparable form of an output: JSON as its documents, other text as its lines."""
    for identifier, name in names.items():
        text = text.replace(identifier, f"<{name}>").replace(identifier[:13], f"<{name}>")
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    if recorded.name.startswith(MEASURED):
        text = re.sub(r"\b\d+(\.\d+)?\b", "#", text)
    if text.startswith(("{\n", "[\n")) and " | " not in recorded.command:
        # A schema's keys have no order.
        return list(documents(text, dict if "jsonschema" in recorded.name else list))
    lines = re.sub(r"(?<=\S) {2,}", "  ", text).rstrip("\n").split("\n")
    return sorted(lines) if UNORDERED.search(recorded.command) else lines
