"""The man pages: made of the live tree, complete, and clean for the programs that show them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.cli import manpages, surface
from pycrictl.cli.manual import commands, compat, compat_commands, overview, roff, toml
from pycrictl.cli.table import BY_NAME
from pycrictl.config import KEYS
from pycrictl.errors import ExitCode
from pycrictl.proxy import settings

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "man"
PAGES = manpages.pages()
PROGRAM = surface.program()


def walk(command: surface.Command) -> Iterator[surface.Command]:
    yield command
    for inner in command.subcommands:
        yield from walk(inner)


def output(*words: str) -> str:
    """What a program writes, to whichever output; it must not fail."""
    assert shutil.which(words[0]), f"{words[0]} is missing: run tests/node/install.sh"
    done = subprocess.run(
        words, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def shown(name: str) -> str:
    """A page as its reader sees it, in one line."""
    text = output("mandoc", "-T", "utf8", "-O", "width=200", name)
    return " ".join(re.sub(r".\x08", "", text).replace("’", "'").split())


def test_the_files_are_made_of_the_tree() -> None:
    """``make generate`` writes them."""
    found = {path.name: path.read_bytes() for path in FOLDER.glob("*.[157]")}
    assert found.keys() == PAGES.keys()
    for name, page in PAGES.items():
        assert found[name] == page, f"{name} is out of date: run make generate"


def test_every_command_has_a_page() -> None:
    own = {f"pycrictl-{command.name}.1" for command in PROGRAM.subcommands}
    assert PAGES.keys() == {"pycrictl.1", "pycrictl-compat.7", "pycrictl.toml.5", *own}


def test_another_process_makes_the_same_pages() -> None:
    code = (
        "import hashlib; from pycrictl.cli.manpages import pages;"
        "print(hashlib.sha256(b''.join(pages().values())).hexdigest())"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "COLUMNS": columns, "TZ": zone, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for seed, columns, zone in (("1", "40", "Asia/Tokyo"), ("2", "200", "America/Lima"))
    )
    assert first == second


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_lints_find_nothing(name: str) -> None:
    assert output("mandoc", "-T", "lint", name) == ""
    for encoding, device in (("UTF-8", "utf8"), ("ASCII", "ascii")):
        words = ("man", "--warnings", "-E", encoding, "-l", f"-T{device}", "-Z", f"./{name}")
        done = subprocess.run(words, cwd=FOLDER, capture_output=True, timeout=60, check=True)
        assert done.stderr == b""
        assert done.stdout


@pytest.mark.parametrize(
    "command", PROGRAM.subcommands, ids=[command.name for command in PROGRAM.subcommands]
)
def test_a_page_tells_all_of_its_command(command: surface.Command) -> None:
    text = shown(f"pycrictl-{command.name}.1")
    for each in walk(command):
        assert f"pycrictl {' '.join(each.path)}" in text
        for option in each.options:
            assert ", ".join(option.names) in text
            assert option.help in text
        for paragraph in each.description:
            assert paragraph in text
        for _, line in manpages.examples(each):
            assert " ".join(line.split()) in text
        assert manpages.examples(each)
    references = set(re.findall(r"(pycrictl[\w.-]*)\((\d)\)", text))
    assert all(f"{name}.{section}" in PAGES for name, section in references)


def test_the_overview_tells_all_commands_and_options() -> None:
    text = shown("pycrictl.1")
    for command in PROGRAM.subcommands:
        assert f"{', '.join((command.name, *command.aliases))} {command.summary}." in text
        assert f"pycrictl-{command.name}(1)" in text
    for option in PROGRAM.options:
        assert option.help in text


def test_what_is_handwritten_is_about_what_there_is() -> None:
    known = {" ".join(command.path) for command in walk(PROGRAM)}
    assert known >= {
        *compat_commands.COMMANDS,
        *commands.PARTS,
        *commands.EXIT_STATUS,
        *commands.EXAMPLES,
    }
    assert {name.strip("`") for name, _ in compat.ADDED} <= BY_NAME.keys()


def test_every_option_that_is_named_exists() -> None:
    known = {
        spelling
        for command in walk(PROGRAM)
        for option in command.options
        for spelling in option.names
    }
    made_up = {"--name", "--all"}  # in explanations of the grammar
    for name in PAGES:
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown(name))
        assert set(named) <= known | made_up, name


def test_every_difference_has_a_reason() -> None:
    told = [each for group in (compat.GENERAL, compat_commands.COMMANDS) for each in group.values()]
    differences = [difference for group in told for difference in group]
    assert len(differences) > 80
    for here, why in differences:
        assert here.endswith(".")
        assert why.endswith(".")
    text = shown("pycrictl-compat.7")
    for here, why in differences:
        assert f"{here} {why}".replace("`", "") in text


def test_the_exit_statuses_are_those_of_the_program() -> None:
    told = {int(code) for codes, _ in overview.EXIT_STATUS for code in codes.split(", ")}
    assert told >= {code.value for code in ExitCode}


def test_the_keys_of_the_configuration_are_those_of_the_program() -> None:
    (terms,) = (block for block in overview.CONFIGURATION.blocks if isinstance(block, roff.Terms))
    assert sorted(name.strip("`") for name, _ in terms.items) == sorted(KEYS)


def test_the_keys_of_the_proxy_are_its_options() -> None:
    (proxy,) = (command for command in PROGRAM.subcommands if command.name == "proxy")
    options = {option.names[-1] for option in proxy.options} - {"--config", "--help"}
    assert options == {f"--{key}" for key in toml.KEYS}


def test_the_defaults_of_the_proxy_are_those_of_the_page(tmp_path: Path) -> None:
    written = [f"{name} = {key.default}" for name, key in toml.KEYS.items() if key.default]
    written = [line for line in written if not line.startswith(("kubelet-config", "serialize"))]
    path = tmp_path / "pycrictl.toml"
    path.write_text("\n".join(('upstream = "/u.sock"', *written)))
    upstream = {"upstream": "/u.sock"}
    given = settings.load({"config": str(path)})
    plain = settings.load({**upstream, "config": "/dev/null"})
    assert given.limit == plain.limit == 0
    fields = (name for name in settings.ProxySettings.__slots__ if name != "limit_origin")
    assert all(getattr(given, name) == getattr(plain, name) for name in fields)


@pytest.mark.parametrize("lines", [toml.EXAMPLE, toml.EXAMPLE_OF_KUBELET])
def test_the_examples_of_the_proxys_file_are_valid(lines: tuple[str, ...], tmp_path: Path) -> None:
    kubelet = tmp_path / "kubelet.yaml"
    kubelet.write_text("maxParallelImagePulls: 4\nserializeImagePulls: false\n")
    text = "\n".join(lines).replace("/var/lib/kubelet/config.yaml", str(kubelet))
    path = tmp_path / "pycrictl.toml"
    path.write_text(text)
    limit = tomllib.loads(text).get("max-parallel-image-pulls", 4)
    assert settings.load({"config": str(path)}).limit == limit


def test_texts_are_escaped() -> None:
    assert roff.inline('a `--b` c\'s \\ "d" …') == (r"a \fB\-\-b\fP c\(cqs \e \(dqd\(dq \[u2026]")
    assert roff.paragraph(". 'x") == [r"\&. \(aqx"]
    assert list(roff.part((roff.Lines((".x", "'y")),))) == [
        ".RS 4",
        ".EX",
        r"\&.x",
        r"\(aqy",
        ".EE",
        ".RE",
    ]
    with pytest.raises(ValueError, match="backticks"):
        roff.inline("an `open one")


def test_a_sentence_begins_a_line() -> None:
    assert roff.paragraph("One. Two? `three` four") == ["One.", "Two?", r"\fBthree\fP four"]


def test_no_command_loads_the_pages() -> None:
    code = (
        "import sys; from pycrictl.cli.main import main; main(['--help']); main(['ps', '--help']);"
        "print([name for name in sys.modules if 'manpages' in name or 'cli.manual' in name],"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"
