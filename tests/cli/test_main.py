"""The outermost layer: how errors, help and signals look to the user."""

from __future__ import annotations

from pycrictl import __version__
from pycrictl.cli.command_table import COMMANDS
from pycrictl.cli.tree import command_of
from tests.cli.run import Run


def test_the_table_cannot_drift() -> None:
    for entry in COMMANDS:
        summary, *texts = (command_of(entry).help or "").split("\n\n")
        assert summary == f"{entry.summary}."
        assert any(text.startswith("Example: pycrictl ") for text in texts), entry.name


def test_version_option() -> None:
    run = Run("--version")
    assert run.code == 0
    assert run.stdout == f"pycrictl version {__version__}\n"


def test_secrets_stay_out_of_errors() -> None:
    run = Run("pull", "--creds", "user:hunter2", "--auth", "c2VjcmV0", "a")
    assert run.code == 1
    assert "hunter2" not in run.stderr
    assert "c2VjcmV0" not in run.stderr
