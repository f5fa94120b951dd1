"""Command lines as kubectl passes them to its plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pycrictl.base.errors import OptionError
from pycrictl.cli import argv
from pycrictl.cli.argv import by_spelling
from pycrictl.cli.command_table import (
    HANDED_ON,
    KUBECTL_OPTIONS,
    PLUGINS,
    PREFIX,
    CommandSpec,
    plugin_of,
)
from pycrictl.cli.tree import command_of
from tests.cli.run import Run

PLUGIN = PLUGINS[0]
OPTIONS = by_spelling([*KUBECTL_OPTIONS, *command_of(PLUGIN).params])


def read(*words: str) -> argv.CommandLine:
    return argv.parse(words, OPTIONS, attached=True)


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("kubectl-image_pull_progress", True),
        ("kubectl-image_pull_progress.exe", True),
        ("pycrictl", False),
        ("kubectl-other", False),
    ],
)
def test_the_name_says_which_plugin_it_is(name: str, called: bool) -> None:
    assert plugin_of(name) == (PLUGIN if called else None)


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_the_summary_is_that_of_the_command(plugin: CommandSpec) -> None:
    assert (command_of(plugin).help or "").startswith(f"{plugin.summary}.\n")


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_the_help_names_all_options_of_the_connection(
    plugin: CommandSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{PREFIX}{plugin.name}"])
    page = Run("--help").stdout
    assert page.startswith(f"Usage: kubectl {plugin.name} ")
    assert all(f"--{name}" in page.replace(",", "").split() for name in HANDED_ON)


def test_options_of_the_connection_are_handed_on() -> None:
    line = read(
        "web", "--context", "prod", "-v6", "-s=https://a", "--as-group=a", "--as-group", "b",
        "--insecure-skip-tls-verify", "-n", "shop", "--match-server-version=false",
    )  # fmt: skip
    assert sorted(word for name, word in line.words() if name != "namespace") == [
        "--as-group=a",
        "--as-group=b",
        "--context=prod",
        "--insecure-skip-tls-verify=true",
        "--match-server-version=false",
        "-s=https://a",
        "-v=6",
    ]
    assert (line.values["namespace"], line.positionals) == ("shop", ["web"])


@pytest.mark.parametrize(
    ("words", "values", "positionals"),
    [
        *((words, {"namespace": "shop"}, []) for words in ("-nshop", "-n shop", "-n=shop")),
        ("--namespace=shop", {"namespace": "shop"}, []),
        ("-fA", {"follow": True, "all_namespaces": True}, []),
        ("-- -nshop", {}, ["-nshop"]),
    ],
)
def test_spellings(words: str, values: dict[str, object], positionals: list[str]) -> None:
    line = read(*words.split())
    assert (line.values, line.positionals) == (values, positionals)


def test_an_unknown_option() -> None:
    with pytest.raises(OptionError, match="--contxt"):
        read("--contxt=a")


def test_it_imports_nothing_of_the_node(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['kubectl-image_pull_progress', 'web']\n"
        "from pycrictl.cli.main import main\n"
        "status = main(sys.argv[1:])\n"
        "print(status, {'grpc', 'google.protobuf', 'tqdm', 'yaml', 'rich'} & sys.modules.keys())"
    )
    words = [sys.executable, "-c", code]
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 set()\n"
    assert "kubectl is not installed" in done.stderr
