"""YAML as crictl 1.36.0 wrote it; what is read back is tested with JSON in ``test_datatext``."""

from __future__ import annotations

import json
from pathlib import Path

from pycrictl.show.goyaml import document_yaml


def test_yaml_is_byte_for_byte_that_of_crictl() -> None:
    """The recording has hostile strings and keys, orders of keys, numbers and nesting."""
    recorded = json.loads((Path(__file__).parent / "data/go-yaml.json").read_text("utf-8"))
    assert document_yaml(recorded["document"]).split("\n") == recorded["yaml"].split("\n")
