"""The schemas are crictl's."""

from __future__ import annotations

import json

from pycrictl.show.schema import container_schema, pod_schema
from tests.captures import capture


def test_schemas_are_crictls() -> None:
    text = capture("run-jsonschema-both").output
    decoder = json.JSONDecoder()
    pod, end = decoder.raw_decode(text)
    container, _ = decoder.raw_decode(text, text.index("{", end))
    assert (pod_schema(), container_schema()) == (pod, container)
