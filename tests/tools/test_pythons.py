"""Which Pythons and which dependencies the program is tested with."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import pythons

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_all_places_name_the_same_versions() -> None:
    versions = sorted(pythons.versions())
    assert PROJECT["requires-python"] == f">={versions[0]}"
    bundle = (ROOT / "packaging" / "bundle.py").read_text("utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (matrix,) = re.findall(r"python: (\[.*\])", workflow)
    assert json.loads(matrix) == versions
    served = re.search(r"^PYTHONS: Final = (.*)$", bundle, re.MULTILINE)
    assert served is not None
    assert re.findall(r"\((\d), (\d+)\)", served[1]) == [tuple(v.split(".")) for v in versions]


def test_the_lowest_versions_are_those_of_the_project() -> None:
    lowest = pythons.lowest()
    extras = PROJECT["optional-dependencies"]
    assert len(lowest) == len(PROJECT["dependencies"]) + len(extras["agent"])
    assert {"typer==0.27.2", "aiohttp==3.12"} <= set(lowest)
    (isal,) = (line for line in lowest if line.startswith("isal"))
    assert isal.startswith("isal==1.7; platform_machine")


def test_the_python_that_runs_this_comes_first() -> None:
    ours = "{}.{}".format(*sys.version_info)
    assert pythons.versions()[0] == ours
    assert pythons._interpreter(ours) == ([], str(Path(sys.base_prefix, "bin", f"python{ours}")))


@pytest.mark.parametrize(("words", "wanted"), [((), None), (("PYTHON3=other",), "other")])
def test_make_takes_the_systems_python_on_debian(
    tmp_path: Path, words: tuple[str, ...], wanted: str | None
) -> None:
    earlier = tmp_path / "python3"
    earlier.write_text("#!/bin/sh\nexit 1\n")
    earlier.chmod(0o755)
    is_debian = platform.freedesktop_os_release()["ID"] == "debian"
    wanted = wanted or ("/usr/bin/python3" if is_debian else "python3")
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    command = ["make", "--dry-run", "--always-make", ".venv-docs/.stamp", *words]
    environment = {"PATH": path}  # without what a make around this one says
    said = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
    assert said.startswith(f"{wanted} -m venv ")


def test_make_alone_prints_every_target() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    phony, _ = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    said = subprocess.check_output(["make", "-s"], cwd=ROOT, env={"PATH": os.defpath}, text=True)
    printed = [line.split(maxsplit=1)[0] for line in said.splitlines()]
    assert printed == phony.split()
