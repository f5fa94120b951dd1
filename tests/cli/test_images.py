"""``images`` and ``version`` beyond what the recordings show."""

from __future__ import annotations

import json

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.captures import load, scene
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status


def test_json_is_crictls_document(fake: FakeServer) -> None:
    images = scene.real_images()
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(images=images))
    run = Run("-r", fake.endpoint, "images", "-o", "json")
    document = json.loads(run.stdout)
    assert [image["id"] for image in document["images"]] == [
        "sha256:" + start
        for start in (
            "10120ce75a3dd8cfaaf4990a80c4229adc82786adc44577c2a6fae43047bdb33",
            "41388c7310587741c193497daa9708461829e9e78af734d08bc5a4ada7d99131",
            "340fc8c6ef9ceb11d4452d5234f52c826b455fff259e9a956ac692f8b1e5caac",
            "1df5149d32ac6e09f4e87c7045931a7f9043eaa1c80699d6f073985c0d6dc749",
            "6cdf260bcef7861ead08d4db8f936ce923d0ea2a28915689a089194db7308723",
        )
    ]
    assert run.stdout.startswith('{\n  "images": [\n    {\n      "id": "sha256:')


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["images", "a", "b"], "pycrictl: got unexpected extra argument(s) (b)"),
        (["images", "-o", "xml"], 'pycrictl: unknown output format "xml"'),
        (["images", "-f", "label=x"], 'pycrictl: unknown filter "label=x"'),
        (["images", "-f", "reference=("], 'pycrictl: "(" for --filter is not'),
    ],
)
def test_bad_input_is_refused_before_any_call(
    fake: FakeServer, words: list[str], line: str
) -> None:
    run = Run("-r", fake.endpoint, *words)
    assert run.code == 1
    assert run.stderr.startswith(line)
    assert fake.calls == []


def test_names_cannot_steer_the_terminal(fake: FakeServer) -> None:
    image = cri_pb2.Image(id="sha256:\x1b[2J", repo_tags=["evil\x1b]0;x\x07\n:1"], username="\r")
    fake.prepare("ListImages", *[cri_pb2.ListImagesResponse(images=[image])] * 5)
    for words in ([], ["-q"], ["-v"], ["-o", "json"], ["-o", "yaml"]):
        run = Run("-r", fake.endpoint, "images", *words)
        assert run.code == 0
        assert not any(ord(char) < 32 and char != "\n" for char in run.stdout)


def test_version(fake: FakeServer) -> None:
    fake.prepare("Version", scene.real_version())
    run = Run("-r", fake.endpoint, "version")
    (recorded,) = [capture for capture in load("version") if capture.name == "version"]
    assert (run.code, run.stdout) == (0, recorded.output)
    assert fake.methods() == ["Version"]
    assert fake.calls[0].request.version == "v1"


def test_a_failing_call_is_one_line(fake: FakeServer) -> None:
    fake.prepare("ListImages", Status(grpc.StatusCode.INTERNAL, "boltdb\nis \x1b[31mbroken"))
    run = Run("-r", fake.endpoint, "images")
    assert run.code == 1
    assert run.stdout == ""
    assert run.stderr.splitlines()[0].startswith("pycrictl: ListImages: internal error: boltdb is ")
    assert "\x1b" not in run.stderr
