"""``jsonschema`` below other commands, and how sub-commands are found."""

from __future__ import annotations

import pytest

from tests.captures import capture, documents
from tests.cli.run import Run

POD = "https://k8s.io/cri-api/pkg/apis/runtime/v1/pod-sandbox-config"
CONTAINER = "https://k8s.io/cri-api/pkg/apis/runtime/v1/container-config"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["runp", "jsonschema"], [POD]),
        (["runp", "js"], [POD]),
        (["pull", "js"], [POD]),
        (["pull", "-u", "x", "js"], [POD]),
        (["create", "jsonschema", "-p"], [POD]),
        (["create", "js", "--container"], [CONTAINER]),
        (["run", "js", "-c", "-p"], [POD, CONTAINER]),
        (["run", "js", "-pc"], [POD, CONTAINER]),
        (["run", "js", "-p", "--container=false"], [POD]),
    ],
)
def test_schemas(words: list[str], expected: list[str]) -> None:
    run = Run(*words)
    assert (run.code, run.stderr) == (0, "")
    assert [document["$id"] for document in documents(run.stdout)] == expected


def test_the_text_is_laid_out_as_crictls() -> None:
    head = capture("config-image-annotation").output
    assert Run("pull", "js").stdout.startswith(head.rstrip("\n"))
