"""The completion scripts in real shells, with the program from this tree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.cli.commands.shell import FILES
from tests.cli import shells
from tests.cli.run import Run

pytestmark = pytest.mark.debian


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    folder = home / "files"
    folder.mkdir()
    for name in ("plain.json", "my pod.json", "it's.yaml", "a:b.json"):
        (folder / name).touch()
    (folder / "inner").mkdir()
    shells.install_program(home, remembers=True)
    return home


@pytest.fixture(scope="module", params=[False, True], ids=["bare", "bash-completion"])
def bash(home: Path, request: pytest.FixtureRequest) -> Iterator[shells.Shell]:
    with shells.bash(home, shells.environment(home), with_package=request.param) as shell:
        yield shell


@pytest.fixture(scope="module")
def zsh(home: Path) -> Iterator[shells.Shell]:
    with shells.zsh(home, shells.environment(home)) as shell:
        yield shell


@pytest.mark.parametrize("shell", FILES)
def test_the_command_prints_the_file(shell: str) -> None:
    run = Run("completion", shell)
    assert (run.code, run.stderr) == (0, "")
    assert run.stdout == (shells.FOLDER / FILES[shell]).read_text()


# Typed lines and their completion, which may include a blank at the end

COMPLETED = {
    "pycrictl imagef": "pycrictl imagefsinfo ",
    "pycrictl --runtime-endpoint=unix:///run/x.sock imagef": "pycrictl"
    " --runtime-endpoint=unix:///run/x.sock imagefsinfo ",
    "pycrictl ps --state=ru": "pycrictl ps --state=running ",
    "pycrictl -c=files/pl": "pycrictl -c=files/plain.json ",
    "pycrictl config --set timeo": "pycrictl config --set timeout=",
    "pycrictl -r unix:///et": "pycrictl -r unix:///etc/",
    "pycrictl --host-root files/": "pycrictl --host-root files/inner/",
    "pycrictl runp files/my": "pycrictl runp files/my\\ pod.json ",
    "pycrictl runp files/it": "pycrictl runp files/it\\'s.yaml ",
    "pycrictl runp 'files/my": "pycrictl runp 'files/my pod.json' ",
    "pycrictl runp files/my\\ pod.json --r": "pycrictl runp files/my\\ pod.json --runtime ",
    "pycrictl nosuch --al": "pycrictl nosuch --al",
    "true; FOO=1 pycrictl imagef": "true; FOO=1 pycrictl imagefsinfo ",
    "pycrictl ps >files/pl": "pycrictl ps >files/plain.json ",
}


@pytest.mark.parametrize("line", COMPLETED)
def test_a_line_in_bash(bash: shells.Shell, line: str) -> None:
    assert bash.complete(line) == COMPLETED[line]


@pytest.mark.parametrize("line", COMPLETED)
def test_a_line_in_zsh(zsh: shells.Shell, line: str) -> None:
    assert zsh.complete(line).rstrip() == COMPLETED[line].rstrip()


def test_lines_in_fish(home: Path) -> None:
    cases = {
        "pycrictl -r /run/x.sock imagef": {"imagefsinfo"},
        "pycrictl ps --state=ru": {"--state=running"},
        "pycrictl ps --name ps --no-h": {"--no-headers"},
        "pycrictl --config=files/pl": {"--config=files/plain.json"},
        "pycrictl -r unix:///et": {"unix:///etc/"},
        "pycrictl runp files/": {
            "files/a:b.json", "files/inner/", "files/it's.yaml", "files/my pod.json",
            "files/plain.json",
        },
        "pycrictl runp files/my\\ ": {"files/my pod.json"},
        "pycrictl runp ~/files/my": {"~/files/my pod.json"},
        'pycrictl runp "files/it': {"files/it's.yaml"},
        "pycrictl stop --timeout ": set(),
        "pycrictl nosuch ": set(),
    }  # fmt: skip
    answers = shells.fish(home, shells.environment(home), ["pycrictl ", *cases])
    assert answers[0]["images"] == "List the images on the node"
    assert dict(zip(cases, map(set, answers[1:]), strict=True)) == cases


def test_zsh_shows_descriptions(zsh: shells.Shell) -> None:
    shown, line = zsh.press("pycrictl image", "\t")
    assert line == "pycrictl image"
    assert "List the images on the node" in shown
    assert "image-pull-progress" in shown


# Other names


def test_an_alias_and_a_link_in_bash(home: Path) -> None:
    env = shells.environment(home)
    with shells.bash(home, env) as shell:
        shell.run("unalias -a")
        assert shell.complete("crictl imagef") == "crictl imagef"
        shell.run("alias crictl='sudo pycrictl'")
        shell.run(f"source {shells.FOLDER}/pycrictl.bash")
        assert shell.complete("crictl imagef") == "crictl imagefsinfo "
    (home / "bin" / "crictl").symlink_to("pycrictl")
    try:
        with shells.bash(home, env) as shell:
            assert shell.complete("crictl imagef") == "crictl imagefsinfo "
    finally:
        (home / "bin" / "crictl").unlink()


def test_the_script_of_a_link(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/crictl"])
    for shell in FILES:
        (tmp_path / shell).write_text(Run("completion", shell).stdout)
    (tmp_path / "zsh").rename(tmp_path / "_crictl")
    shells.install_program(tmp_path, "crictl")
    env = shells.environment(tmp_path)
    with shells.bash(home, env, script=tmp_path / "bash") as bash:
        assert bash.complete("crictl imagef") == "crictl imagefsinfo "
        assert bash.complete("pycrictl imagef") == "pycrictl imagef"
    with shells.zsh(home, env, folder=tmp_path) as zsh:
        assert zsh.complete("crictl imagef") == "crictl imagefsinfo "
    (answer,) = shells.fish(home, env, ["crictl imagef"], script=tmp_path / "fish")
    assert set(answer) == {"imagefsinfo"}
