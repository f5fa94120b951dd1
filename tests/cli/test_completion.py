"""The completion scripts in real shells: what stands in them, without starting the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.cli.commands.shell import FILES
from tests.cli import shells
from tests.cli.run import Run
from tools import surface

PROGRAM = surface.program()
COMMANDS = [command for command in PROGRAM.walk() if command.path]


def lines_of(command: surface.Command) -> list[str]:
    """The command, by each name that it and those above it have."""
    lines = ["pycrictl"]
    level = PROGRAM
    for name in command.path:
        level = next(inner for inner in level.subcommands if inner.name == name)
        lines = [f"{line} {each}" for line in lines for each in (name, *level.aliases)]
    return lines


def long_names(command: surface.Command) -> set[str]:
    return {name for option in command.options for name in option.names if name.startswith("--")}


NAMES = {name for command in PROGRAM.subcommands for name in (command.name, *command.aliases)}
FLAGS = {line: long_names(command) for command in PROGRAM.walk() for line in lines_of(command)}
CHOICES = {
    # Paths in JSON begin with a dot, and such words are hidden until it is typed.
    f"{lines_of(command)[0]} {name} {'.' * option.choices[0].startswith('.')}": set(option.choices)
    for command in PROGRAM.walk()
    for option in command.options
    if option.choices
    for name in option.names
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some local files, and a program that must not be started."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "files"
    folder.mkdir()
    for name in ("plain.json", "my pod.json", "it's.yaml", "a:b.json"):
        (folder / name).touch()
    (folder / "inner").mkdir()
    shells.install_trap(home)
    return home


@pytest.fixture(autouse=True)
def nothing_is_started(home: Path) -> Iterator[None]:
    yield
    assert not (home / "started").exists()


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
    assert run.code == 0
    assert run.stdout == (shells.FOLDER / FILES[shell]).read_text()
    assert run.stderr == ""


def test_bash_is_what_crictl_takes_without_a_shell() -> None:
    assert Run("completion").stdout == Run("completion", "bash").stdout


def test_no_other_shell() -> None:
    run = Run("completion", "tcsh")
    assert (run.code, run.stdout) == (1, "")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'\n" in run.stderr


def words(text: str) -> set[str]:
    return set(text.split())


# Everything in the tree


def test_bash_knows_every_command(bash: shells.Shell) -> None:
    assert words(bash.complete("pycrictl ", "\x1b*")) == {"pycrictl", *NAMES}


def test_bash_knows_every_flag(bash: shells.Shell) -> None:
    for line, names in FLAGS.items():
        assert words(bash.complete(f"{line} --", "\x1b*")) - words(line) == names, line


def test_bash_knows_every_fixed_value(bash: shells.Shell) -> None:
    for line, choices in CHOICES.items():
        shown = bash.complete(line, "\x1b*").replace("\\", "")
        assert words(shown) - words(line) == choices - words(line), line


def test_fish_knows_everything(home: Path) -> None:
    lines = ["pycrictl ", *(f"{line} --" for line in FLAGS), *CHOICES]
    found = shells.fish(home, shells.environment(home), lines)
    assert [set(each) for each in found] == [NAMES, *FLAGS.values(), *CHOICES.values()]
    assert found[0]["images"] == "List the images on the node"
    described = found[1 + list(FLAGS).index("pycrictl ps")]
    assert described["--quiet"] == "Print IDs only"


def test_zsh_knows_every_command(zsh: shells.Shell) -> None:
    listed, line = zsh.press("pycrictl ", "\t")
    assert line == "pycrictl "
    assert set(re.findall(r"^([a-z-]+) +--", listed, re.MULTILINE)) >= {"ps", "update"}
    assert words(listed) >= NAMES
    assert "List the images on the node" in listed


def test_zsh_knows_every_flag(zsh: shells.Shell) -> None:
    for line, names in FLAGS.items():
        listed, completed = zsh.press(f"{line} --", "\t")
        found = set(re.findall(r"(?<![\w-])--[a-z-]+", listed)) | words(completed)
        assert {name.rstrip("=") for name in found} >= names, line


def test_zsh_knows_every_fixed_value(zsh: shells.Shell) -> None:
    for line, choices in CHOICES.items():
        listed, completed = zsh.press(line, "\t")
        assert words(f"{listed} {completed}".replace("\\", "")) >= choices, line


# Lines as somebody types them

COMPLETED = {
    "pycrictl imagef": "pycrictl imagefsinfo ",
    "pycrictl --debug imagef": "pycrictl --debug imagefsinfo ",
    "pycrictl -r /run/x.sock imagef": "pycrictl -r /run/x.sock imagefsinfo ",
    "pycrictl --runtime-endpoint=unix:///run/x.sock imagef": "pycrictl"
    " --runtime-endpoint=unix:///run/x.sock imagefsinfo ",
    "pycrictl help imagef": "pycrictl help imagefsinfo ",
    "pycrictl ps --no-h": "pycrictl ps --no-headers ",
    "pycrictl ps --state=ru": "pycrictl ps --state=running ",
    "pycrictl ps --state ru": "pycrictl ps --state running ",
    "pycrictl ps -q --output=jsonp": "pycrictl ps -q --output=jsonpath=",
    "pycrictl ps -o custom": "pycrictl ps -o custom-columns=",
    "pycrictl ps -qo wid": "pycrictl ps -qo wide ",
    "pycrictl ps -o=wid": "pycrictl ps -o=wide ",
    "pycrictl ps -qo=wid": "pycrictl ps -qo=wide ",
    "pycrictl ps -o=json --no-h": "pycrictl ps -o=json --no-headers ",
    "pycrictl -r=/run/x.sock imagef": "pycrictl -r=/run/x.sock imagefsinfo ",
    "pycrictl -c=files/pl": "pycrictl -c=files/plain.json ",
    "pycrictl exec x sh -o=js": "pycrictl exec x sh -o=js",
    "pycrictl ps --name ps --no-h": "pycrictl ps --name ps --no-headers ",
    "pycrictl event -o go": "pycrictl event -o go-template ",
    "pycrictl images --filter=dangling=t": "pycrictl images --filter=dangling=true ",
    "pycrictl images --sort-by si": "pycrictl images --sort-by size ",
    "pycrictl create jsonschema --cont": "pycrictl create jsonschema --container ",
    "pycrictl create js --cont": "pycrictl create js --container ",
    "pycrictl pull-limiter st": "pycrictl pull-limiter status ",
    "pycrictl config --set timeo": "pycrictl config --set timeout=",
    "pycrictl config runtime-e": "pycrictl config runtime-endpoint ",
    "pycrictl completion fi": "pycrictl completion fish ",
    "pycrictl --config=files/pl": "pycrictl --config=files/plain.json ",
    "pycrictl --config files/pl": "pycrictl --config files/plain.json ",
    "pycrictl -r unix:///et": "pycrictl -r unix:///etc/",
    "pycrictl runp files/in": "pycrictl runp files/inner/",
    "pycrictl runp files/my": "pycrictl runp files/my\\ pod.json ",
    "pycrictl runp files/it": "pycrictl runp files/it\\'s.yaml ",
    'pycrictl runp "files/it': 'pycrictl runp "files/it\'s.yaml" ',
    "pycrictl runp 'files/my": "pycrictl runp 'files/my pod.json' ",
    "pycrictl runp files/my\\ pod.json --can": "pycrictl runp files/my\\ pod.json --cancel-timeout",
    "pycrictl run files/it\\'s.yaml files/pl": "pycrictl run files/it\\'s.yaml files/plain.json ",
    "pycrictl stop --timeout ": "pycrictl stop --timeout ",
    "pycrictl nosuch --al": "pycrictl nosuch --al",
    "pycrictl ps --nosuch=": "pycrictl ps --nosuch=",
    "true; FOO=1 pycrictl imagef": "true; FOO=1 pycrictl imagefsinfo ",
    "true | pycrictl ps --state ru": "true | pycrictl ps --state running ",
    "pycrictl ps >files/pl": "pycrictl ps >files/plain.json ",
    "pycrictl ps > files/pl": "pycrictl ps > files/plain.json ",
}


@pytest.mark.parametrize("line", COMPLETED)
def test_a_line_in_bash(bash: shells.Shell, line: str) -> None:
    assert bash.complete(line).rstrip() == COMPLETED[line].rstrip()


@pytest.mark.parametrize("line", COMPLETED)
def test_a_line_in_zsh(zsh: shells.Shell, line: str) -> None:
    # Zsh adds the sign where a value follows.
    assert zsh.complete(line).rstrip(" =") == COMPLETED[line].rstrip(" =")


def test_a_word_is_finished_but_where_it_goes_on(bash: shells.Shell) -> None:
    assert bash.complete("pycrictl ps --state=ru") == "pycrictl ps --state=running "
    assert bash.complete("pycrictl config --set timeo") == "pycrictl config --set timeout="
    assert bash.complete("pycrictl runp files/in") == "pycrictl runp files/inner/"


def test_lines_in_fish(home: Path) -> None:
    cases = {
        "pycrictl -r /run/x.sock imagef": {"imagefsinfo"},
        "pycrictl help imagef": {"imagefsinfo"},
        "pycrictl ps --state=ru": {"--state=running"},
        "pycrictl ps --state ru": {"running"},
        "pycrictl ps -qo wid": {"wide"},
        "pycrictl ps --name ps --no-h": {"--no-headers"},
        "pycrictl create js --cont": {"--container"},
        "pycrictl completion fi": {"fish"},
        "pycrictl --config=files/pl": {"--config=files/plain.json"},
        "pycrictl -r unix:///et": {"unix:///etc/"},
        "pycrictl runp files/": {
            *("files/a:b.json", "files/inner/", "files/it's.yaml", "files/my pod.json"),
            "files/plain.json",
        },
        "pycrictl runp files/my\\ ": {"files/my pod.json"},
        "pycrictl runp ~/files/my": {"~/files/my pod.json"},
        'pycrictl runp "files/it': {"files/it's.yaml"},
        "pycrictl runp 'files/my": {"files/my pod.json"},
        "pycrictl stop --timeout ": set(),
        "pycrictl nosuch ": set(),
    }
    found = shells.fish(home, shells.environment(home), list(cases))
    assert dict(zip(cases, map(set, found), strict=True)) == cases


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


def test_an_alias_in_zsh(zsh: shells.Shell) -> None:
    zsh.run("alias crictl=pycrictl")
    assert zsh.complete("crictl imagef") == "crictl imagefsinfo "


def test_an_alias_in_fish(home: Path) -> None:
    script = home / "alias.fish"
    script.write_text(f"alias crictl pycrictl\nsource {shells.FOLDER}/pycrictl.fish\n")
    (found,) = shells.fish(home, shells.environment(home), ["crictl imagef"], script=script)
    assert set(found) == {"imagefsinfo"}


def test_the_script_of_a_link(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/crictl"])
    for shell in FILES:
        (tmp_path / shell).write_text(Run("completion", shell).stdout)
    (tmp_path / "zsh").rename(tmp_path / "_crictl")
    env = shells.environment(home)
    with shells.bash(home, env, script=tmp_path / "bash") as bash:
        assert bash.complete("crictl imagef") == "crictl imagefsinfo "
        assert bash.complete("pycrictl imagef") == "pycrictl imagef"
    with shells.zsh(home, env, folder=tmp_path) as zsh:
        assert zsh.complete("crictl imagef") == "crictl imagefsinfo "
    (found,) = shells.fish(home, env, ["crictl imagef"], script=tmp_path / "fish")
    assert set(found) == {"imagefsinfo"}


def test_a_link_prints_the_script_of_its_name(tmp_path: Path) -> None:
    link = tmp_path / "crictl"
    link.write_text("from pycrictl.__main__ import run\nrun()\n")
    result = subprocess.run(
        [sys.executable, str(link), "completion", "zsh"],
        env={**os.environ, "PYTHONPATH": str(shells.ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    own = (shells.FOLDER / "_pycrictl").read_text().splitlines()
    renamed = set(result.stdout.splitlines()) - set(own)
    assert result.stdout.startswith("#compdef crictl\n")
    assert {line.strip() for line in renamed} == {
        "#compdef crictl",
        "local program=crictl line value description",
        "if [[ $funcstack[1] == _crictl ]]; then",
        "compdef _pycrictl crictl",
    }


def test_a_script_can_be_sourced_in_zsh(home: Path) -> None:
    with shells.zsh(home, shells.environment(home), folder=home) as zsh:
        assert zsh.complete("pycrictl imagef") == "pycrictl imagef"
        zsh.run(f"source {shells.FOLDER}/_pycrictl")
        assert zsh.complete("pycrictl imagef") == "pycrictl imagefsinfo "


def test_known_sockets(home: Path, tmp_path: Path) -> None:
    there = tmp_path / "run" / "crio.sock"
    there.parent.mkdir()
    there.touch()
    for shell in FILES:
        script = (shells.FOLDER / FILES[shell]).read_text()
        assert script.count("unix:///run/containerd/containerd.sock") == 1
        script = re.sub(r"unix:///(\S+/)+(?=\w)", f"unix://{there.parent}/", script)
        (tmp_path / {"zsh": "_pycrictl"}.get(shell, shell)).write_text(script)
    env = shells.environment(home)
    endpoint = f"unix://{there}"
    with shells.bash(home, env, script=tmp_path / "bash") as bash:
        assert bash.complete("pycrictl -r ") == f"pycrictl -r {endpoint} "
        assert bash.complete("pycrictl --image-endpoint=u") == (
            f"pycrictl --image-endpoint={endpoint} "
        )
        assert bash.complete("pycrictl -r files/pl") == "pycrictl -r files/plain.json "
    with shells.zsh(home, env, folder=tmp_path) as zsh:
        assert zsh.complete("pycrictl -r u") == f"pycrictl -r {endpoint} "
        assert zsh.complete("pycrictl -r files/pl") == "pycrictl -r files/plain.json "
        assert "files/" in zsh.press("pycrictl -r ", "\t")[0]
    first, second, third = shells.fish(
        home,
        env,
        ["pycrictl -r ", "pycrictl --runtime-endpoint=u", "pycrictl -r files/pl"],
        script=tmp_path / "fish",
    )
    assert {endpoint, "files/"} <= set(first)
    assert set(second) == {f"--runtime-endpoint={endpoint}"}
    assert set(third) == {"files/plain.json"}


def test_zsh_says_nothing_of_what_has_no_description(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "pycrictl"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\nprintf 'web:/bin/vi\\t\\nweb:/bin/vlock\\t\\nweb:/bin/v/\\t\\n'\n"
    )
    program.chmod(0o755)
    with shells.zsh(home, shells.environment(tmp_path)) as zsh:
        shown, line = zsh.press("pycrictl cp web:/bin/v", "\t")
    assert line == "pycrictl cp web:/bin/v"
    assert {"web:/bin/vi", "web:/bin/vlock", "web:/bin/v/"} <= set(shown.split())
    assert "--" not in shown
