"""Which Pythons and which dependencies the program is tested with."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from tools import pythons

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_all_places_name_the_same_versions() -> None:
    versions = sorted(pythons.versions())
    assert PROJECT["requires-python"] == f">={versions[0]}"
    bundle = (ROOT / "packaging" / "bundle.py").read_text("utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    unit, whole = map(json.loads, re.findall(r"python: (\[.*\])", workflow))
    assert (unit, whole) == (versions, [versions[0], versions[-1]])
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
