"""The man pages match the live tree, are complete, and give no warnings in their viewers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pycrictl.base.config import KEYS
from pycrictl.base.errors import ExitCode
from pycrictl.cli.command_table import COMMANDS, HANDED_ON
from tests.proxy.settings import settings_from
from tools import surface
from tools.generate import write
from tools.manual import pages, prose, roff

pytestmark = pytest.mark.debian

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "man"
PAGES = pages.pages()
PROGRAM = surface.program()


def terms(page: str, title: str) -> dict[str, str]:
    return {
        head: text
        for block in prose.section(f"{page}.md", title).blocks
        if isinstance(block, roff.Terms)
        for head, text in block.items
    }


def output(*words: str) -> str:
    """Return what a program writes to both outputs; it must not fail."""
    assert shutil.which(words[0]), f"{words[0]} is missing: run tests/e2e/node/install.sh"
    done = subprocess.run(
        words, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@cache
def shown(name: str) -> str:
    text = output("mandoc", "-T", "utf8", "-O", "width=200", name)
    return " ".join(re.sub(r".\x08", "", text).replace("’", "'").split())


def test_every_command_has_a_page() -> None:
    own = {f"pycrictl-{command.name}.1" for command in PROGRAM.subcommands}
    own |= {f"kubectl-{plugin.name.replace('-', '_')}.1" for plugin in surface.plugins()}
    assert PAGES.keys() == {"pycrictl.1", "pycrictl-compat.7", "pycrictl.toml.5", *own}


def test_the_lints_find_nothing() -> None:
    assert output("mandoc", "-T", "lint", *sorted(PAGES)) == ""
    for encoding, device in (("UTF-8", "utf8"), ("ASCII", "ascii")):
        words = ["man", "--warnings", "-E", encoding, "-l", f"-T{device}", "-Z"]
        words += [f"./{name}" for name in sorted(PAGES)]
        done = subprocess.run(words, cwd=FOLDER, capture_output=True, timeout=60, check=True)
        assert done.stderr == b""
        assert done.stdout.count(b"x init") == len(PAGES)


@pytest.mark.parametrize("command", PROGRAM.subcommands, ids=lambda command: command.name)
def test_a_page_tells_all_of_its_command(command: surface.Command) -> None:
    text = shown(f"pycrictl-{command.name}.1")
    assert f"pycrictl-{command.name}(1)" in shown("pycrictl.1")
    assert command.family
    for command_ in command.walk():
        assert f"pycrictl {' '.join(command_.path)}" in text
        for option in command_.options:
            assert ", ".join(option.names) in text
            assert option.help in text
            assert option.is_repeatable is ("repeatable" in option.help), option.names
        assert not any(argument.is_repeatable for argument in command_.arguments[:-1])
        for paragraph in command_.description:
            assert paragraph in text
        for _, line in pages.examples(command_):
            assert " ".join(line.split()) in text
        assert list(pages.examples(command_))
    references = set(re.findall(r"(pycrictl[\w.-]*)\((\d)\)", text))
    assert all(f"{name}.{section}" in PAGES for name, section in references)


def test_the_prose_is_about_what_exists() -> None:
    names = {path.stem for path in prose.FOLDER.glob("*.md")}
    assert names <= {"README", *(page.rpartition(".")[0] for page in PAGES)}
    shared = {path.name for path in (prose.FOLDER / "shared").iterdir()}
    texts = [path.read_text() for path in prose.FOLDER.glob("*.md")]
    assert shared == set(re.findall(r"(?m)^@include (.+)", "".join(texts)))
    titles = [part.title for part in prose.section("pycrictl-compat.md", "SINGLE COMMANDS").parts]
    named = {name for title in titles for name in title.split(", ")}
    assert named <= {" ".join(command.path) for command in PROGRAM.walk()}
    added = (prose.FOLDER / "pycrictl-compat.md").read_text().rpartition("CRICTL LACKS")[2]
    recorded = json.loads((ROOT / "tests/data/surface.json").read_text("utf-8"))
    crictls = {command["name"] for command in recorded["commands"]}
    assert set(re.findall("`(.+?)`", added)) == {command.name for command in COMMANDS} - crictls


def test_every_option_that_is_named_exists() -> None:
    known = {
        spelling
        for command in PROGRAM.walk()
        for option in command.options
        for spelling in option.names
    }
    known |= {
        name for plugin in surface.plugins() for option in plugin.options for name in option.names
    }
    known |= {f"--{name}" for name in HANDED_ON}
    others = {"--name", "--all"}  # in explanations of the grammar
    others |= {"--raw"}  # of kubectl get
    for name in PAGES:
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown(name))
        assert set(named) <= known | others, name


def test_the_exit_statuses_are_those_of_the_program() -> None:
    told = {int(code) for codes in terms("pycrictl", "EXIT STATUS") for code in codes.split(", ")}
    assert told >= {code.value for code in ExitCode}


def test_the_keys_of_the_configuration_are_those_of_the_program() -> None:
    assert sorted(terms("pycrictl", "CONFIGURATION")) == sorted(f"`{key}`" for key in KEYS)


def test_the_keys_of_the_proxy_are_its_options() -> None:
    (proxy,) = (command for command in PROGRAM.subcommands if command.name == "proxy")
    options = {option.names[-1] for option in proxy.options} - {"--config", "--help"} - {"--reload"}
    assert options == {f"--{name}" for name, *_ in pages.keys()}


def test_the_defaults_of_the_proxy_are_those_of_the_page(tmp_path: Path) -> None:
    written = [f"{name} = {default}" for name, _, default, _ in pages.keys() if default]
    written = [line for line in written if not line.startswith(("kubelet-config", "serialize"))]
    path = tmp_path / "pycrictl.toml"
    path.write_text("\n".join(('upstream = "/u.sock"', *written)))
    given = settings_from(f"--config={path}")
    plain = settings_from("--upstream=/u.sock", "--config=/dev/null")
    assert replace(given, limit_origin="default") == plain


# The files that are made


def made(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in ("man/*.*", "ARCHITECTURE.md")
        for path in folder.glob(pattern)
    }


def test_the_committed_files_are_up_to_date(tmp_path: Path) -> None:
    """The page of a removed command is deleted."""
    kept = tmp_path / "man" / "prose" / "pycrictl-old.md"
    gone = tmp_path / "man" / "pycrictl-old.1"
    kept.parent.mkdir(parents=True)
    for path in (kept, gone):
        path.touch()
    write(tmp_path)
    assert kept.exists()
    assert not gone.exists()
    written, wanted = made(ROOT), made(tmp_path)
    paths = sorted(written.keys() | wanted.keys())
    stale = [path for path in paths if written.get(path) != wanted.get(path)]
    assert stale == [], "run make generate"
