"""Every command of the README and of `docs`, run as written.

Those that a test cannot run are listed with a reason.

The commands before "Try it" must print what the README shows. Any other must use only programs in
``PROGRAMS`` or be listed in ``INSTEAD``, otherwise a test fails: no command stays untested.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

import pytest

from pycrictl.cluster.agent.api.answers import columns
from pycrictl.proxy import settings
from tests.support.pages import FIRST, README, REST, blocks, statements
from tests.waiting import wait_until
from tools import surface

from .house import Done, House
from .lab import MIB
from .machine import ROOT, on_terminal
from .stage import API, BATCH, WEB, Stage

PAGES: Final = "".join(
    (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("building", "install", "recipes")
)

PROGRAMS: Final = frozenset(
    ("pycrictl", "crictl", "cat", "curl", "echo", "install", "jq", "ls", "man", "tar")
)
"""Programs that may run in the house, as they change nothing outside it."""

_DEMO: Final = "from tests.e2e.node import demo; raise SystemExit(demo.main(20))"
_SERVICE: Final = """export STATE_DIRECTORY=/var/lib/pycrictl
systemd-analyze verify /etc/systemd/system/pycrictl-proxy.service
start=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/pycrictl-proxy.service)
$start & service=$!
until pycrictl pull-limiter status; do kill -0 $service; sleep 0.1; done
kill $service; wait $service"""


class Other(NamedTuple):
    line: str
    why: str


INSTEAD: Final = {
    "make demo": Other(
        f"cd {ROOT} && make -n demo | grep tests.e2e.node.demo"
        f" && {shlex.quote(sys.executable)} -c {shlex.quote(_DEMO)}",
        "without installing anything, and with a faster network",
    ),
    "make playground": Other("", "tests/e2e/node/test_playground.py enters it"),
    "packaging/kubernetes/components/ca/make-ca.sh": Other(
        "", "it writes into this tree: tests/packaging/test_kubernetes.py runs a copy"
    ),
    "kubectl apply -k packaging/kubernetes/with-ca": Other(
        "", "there is no cluster: tests/packaging/test_kubernetes.py reads what it applies"
    ),
    "kubectl kustomize packaging/kubernetes/with-ca"
    " | sed 's|ghcr.io/pycrictl|registry.example.com|' | kubectl apply -f -": Other(
        "kubectl kustomize packaging/kubernetes/base"
        " | sed 's|ghcr.io/pycrictl|registry.example.com|'"
        " | grep -x ' *image: registry.example.com/pycrictl:[0-9.]*'",
        "there is no cluster, and no certificates are in this tree: what would be applied",
    ),
    "skopeo copy oci-archive:dist/pycrictl-0.1.0-image-amd64.tar:0.1.0-root"
    " docker://registry.example.com/pycrictl:0.1.0-root": Other("", "it takes a built image"),
    "kubectl debug node/NODE -it --profile=sysadmin"
    " --image=registry.example.com/pycrictl:0.1.0-root -- /usr/bin/pycrictl ps": Other(
        "", "tests/packaging/test_image.py runs the image in such a pod"
    ),
    **dict.fromkeys(
        (
            "pycrictl -H n1 exec -it web sh",
            "pycrictl -H @workers pull --from images.txt",
        ),
        Other("", "tests/hosts has hosts"),
    ),
    "kubectl image-pull-progress web": Other(
        "", "there is no cluster: tests/cluster/kubectl runs it"
    ),
    **{
        f"pycrictl --host {hosts} {words}": Other(f"pycrictl {words}", "tests/hosts has hosts")
        for hosts, words in (
            ("n[001-200]", "pull-limiter set 3"),
            ("n[001-200]", "pull-limiter status"),
            ("@workers", "pull --from images.txt"),
        )
    },
    "pycrictl exec web jcmd 1 GC.heap_dump /tmp/heap.hprof": Other(
        "pycrictl exec web cp /etc/hostname /tmp/heap.hprof", "the container has no JVM"
    ),
    **dict.fromkeys(
        ("sha256sum --check --ignore-missing SHA256SUMS", "gpg --verify SHA256SUMS.asc SHA256SUMS"),
        Other("", "tests/packaging/test_release.py signs and checks"),
    ),
    **{
        f"{installer} install ./pycrictl{name}": Other("", "tests/packaging installs the packages")
        for installer, name in (
            ("apt", "_*_amd64.deb"),
            ("dnf", "-*.x86_64.rpm"),
            ("pipx", "-*.whl"),
        )
    },
    "systemctl daemon-reload && systemctl enable --now pycrictl-proxy": Other(
        f"set -e\n{_SERVICE}", "no systemd is running: the unit's command is started by hand"
    ),
}
"""Commands that a test cannot run as they are: a substitute, if any, and the reason."""

GOES_ON: Final = {
    "pycrictl image-pull-progress --follow": ("downloading", 130),
    "pycrictl proxy --upstream unix:///run/containerd/containerd.sock"
    " --max-parallel-image-pulls 3": (" ready ", 0),
}
"""Commands that run until Ctrl-C: text that they print, and their exit status after it."""

FAILS: Final = (
    "pycrictl doctor --registry registry.example.com/shop/web",
    "pycrictl why",
    "pycrictl why default/web",
)
"""Commands that exit with 1: the node has no network, and a pod of it is not whole."""

SHOWS: Final = {
    "pycrictl image-pull-progress default/web": "done: 3 layers",
    "pycrictl pull-limiter set 5": "limit 3 -> 5",
    "pycrictl pull-limiter status": "WHEN FULL",
    "pycrictl -r unix:///run/pycrictl/cri.sock version": "RuntimeName:  containerd",
}
"""Patterns in the output of some commands; all others need only exit with 0."""


_WATCH: Final = " image-pull-progress"


def programs(statement: str) -> set[str]:
    words = shlex.shlex(statement.partition("\n")[0], posix=True, punctuation_chars=True)
    words.whitespace_split = True
    statements, is_first = set(), True
    for word in words:
        if set(word) <= set("|&;()"):
            is_first = True
        elif is_first and not re.fullmatch(r"\w+=.*", word):
            statements.add(word)
            is_first = False
    return statements


COMMANDS: Final = [
    statement
    for block in blocks(REST + PAGES)
    if block.language in ("sh", "console", "bash")
    for statement in statements(block)
]


def test_every_command_is_known() -> None:
    assert len(COMMANDS) > 15
    unknown = [
        statement
        for statement in COMMANDS
        if statement not in INSTEAD and not programs(statement) <= PROGRAMS
    ]
    assert unknown == [], "run it in a test: see PROGRAMS and INSTEAD"
    assert {*INSTEAD, *GOES_ON, *FAILS, *SHOWS} <= set(COMMANDS)


def test_every_command_works(furnished: House) -> None:
    house = furnished
    house.tidy()
    statements = list(dict.fromkeys(COMMANDS))
    with ThreadPoolExecutor(1) as pool:
        demo = pool.submit(run, house, "make demo")  # it has its own node
        done_before = watch(house, statements)
        others = [
            statement for statement in statements if statement not in (*done_before, "make demo")
        ]
        everything = done_before | {statement: run(house, statement) for statement in others}
        everything["make demo"] = demo.result()
    failures = []
    for statement, done in everything.items():
        expected = GOES_ON.get(statement, ("", int(statement in FAILS)))[1]
        is_shown = re.search(SHOWS.get(statement, ""), done.text)
        if done.code != expected or not is_shown or "Traceback" in done.text:
            failures.append((statement, done))
    assert not failures, "\n".join(map(str, failures))


def watch(house: House, statements: list[str]) -> dict[str, Done]:
    """Return the results of the commands that watch a pull: all the same one, via the proxy."""
    known = {*GOES_ON, *INSTEAD}
    lines = [
        statement for statement in statements if _WATCH in statement and statement not in known
    ]
    with house.proxy() as kubelet, house.slow_pull(kubelet):
        return dict(zip(lines, house.watch(*lines), strict=True))


def run(house: House, statement: str) -> Done:
    with ExitStack() as surroundings:
        if "/run/pycrictl/" in statement or "pull-limiter" in statement:
            surroundings.enter_context(house.proxy())
        if statement in GOES_ON:
            if _WATCH in statement:
                surroundings.enter_context(house.slow_pull())
            return house.run_until(statement, GOES_ON[statement][0])
        return house.run(INSTEAD[statement].line if statement in INSTEAD else statement)


@pytest.mark.node
def test_the_first_commands_print_what_is_shown() -> None:
    """On a terminal of 80 columns; figures, IDs and bars vary and are not compared."""
    shown = dict(examples(FIRST))
    with Stage() as stage:
        stage.keep(API)
        stage.lab.registry.limit(MIB)
        stage.keep(WEB)
        wait_until(stage.lab.node.store.ingests)
        stage.keep(BATCH)

        def go_on(shown: bytes) -> None:
            if b"downloading" in shown:
                stage.lab.registry.limit(8 * MIB)

        printed = {
            line: on_terminal(partial(stage.start, "bash", "-c", line), saw=go_on)[1]
            for line in shown
            if "kubectl" not in line
        }
    assert len(printed) == 5
    for line, output in printed.items():
        for expected in filter(None, shown[line].split("\n")):
            if expected != "…":
                assert alike(expected) in alike(output), f"{line}: {output}"


def test_the_table_of_pulls_has_the_columns_of_kubectl() -> None:
    (text,) = [text for line, text in examples(FIRST) if line.startswith("kubectl ")]
    narrow = [column["name"].upper() for column in columns() if column["priority"] == 0]
    assert re.split(r"\s{2,}", text.splitlines()[0]) == ["NAMESPACE", *narrow]


def examples(text: str) -> Iterator[tuple[str, str]]:
    for block in blocks(text):
        if block.language == "console":
            for word in block.text.removeprefix("$ ").split("\n$ "):
                line, _, output = word.partition("\n")
                yield line, output


def alike(text: str) -> str:
    """Return a text with everything masked that varies between runs, and without line breaks."""
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    text = re.sub(r"\|[\u2588-\u258f ]+\|", "|", text)
    text = re.sub(r"\b[0-9a-f]{12,13}\b", "ID", text)
    # A pull in line has its start once that is known, and then less room for its name.
    text = re.sub(r", starts in [\d.]+ ?\w+|registry\.example/", "", text)
    text = re.sub(r"(?:less than a|about an?|\d+) [a-z]+ ago", "AGE", text)
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", text).split())


def test_kubelet_is_led_to_the_proxys_socket() -> None:
    (block,) = [block for block in blocks(README) if block.language == "yaml"]
    assert block.text.count(settings.DEFAULT_LISTEN) == 2
    for line in block.text.splitlines():
        assert re.match(
            r"(# )?(imageServiceEndpoint|containerRuntimeEndpoint|serializeImagePulls): ", line
        )


def test_commands_within_sentences_exist() -> None:
    program = surface.program()
    commands = {
        name: command
        for command in program.subcommands
        for name in (command.name, *command.aliases)
    }
    reported = [text.split() for text in re.findall(r"`pycrictl ([^`]+)`", README + PAGES)]
    assert reported
    for words in reported:
        name = next((word for word in words if not word.startswith("-")), "")
        command = commands[name] if name else program
        known = {spelling for option in command.options for spelling in option.names}
        assert {word for word in words if word.startswith("-")} <= known, words
