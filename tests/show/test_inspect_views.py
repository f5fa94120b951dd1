from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from io import StringIO

import pytest
import yaml
from google.protobuf import json_format

from pycrictl._proto import cri_pb2
from pycrictl.show import inspect_views, render
from pycrictl.show.jsontext import document_json
from pycrictl.show.protodata import message_document, status_document
from pycrictl.show.times import NEVER
from tests.captures import capture
from tests.captures.scene import (
    fake_container_status,
    fake_image_fs_info,
    fake_pod_status,
    real_image_fs_info,
    real_images,
    real_pods,
)

NOW = 1_795_209_010.0

NO_INFO: Mapping[str, str] = {}


def block_text(block: render.Block) -> str:
    out = StringIO()
    render.write_block(block, out)
    return out.getvalue()


def real_container_status() -> cri_pb2.ContainerStatus:
    """The failed container, put together from what was recorded of it."""
    recorded = yaml.safe_load(capture("inspect-exited").output)["status"]
    del recorded["resources"], recorded["stopSignal"], recorded["user"]
    for name, time_ns in (
        ("createdAt", 1_795_208_878_905_045_660),
        ("startedAt", 1_795_208_879_001_228_889),
        ("finishedAt", 1_795_208_879_012_115_420),
    ):
        recorded[name] = str(time_ns)
    return json_format.ParseDict(recorded, cri_pb2.ContainerStatus())


def test_the_table_of_an_exited_container() -> None:
    block = inspect_views.container_status_block(real_container_status(), NO_INFO, now=NOW)
    assert block_text(block) == capture("inspect-table-quiet").output


def test_the_times_of_an_exited_container() -> None:
    times = inspect_views.container_times(real_container_status(), zone=UTC)
    recorded = yaml.load(capture("inspect-exited").output, yaml.BaseLoader)["status"]
    assert times == {name: recorded[name] for name in times}


@pytest.mark.parametrize(
    ("state", "finished_at", "never"),
    [
        ("CONTAINER_CREATED", 5, ["startedAt", "finishedAt"]),
        ("CONTAINER_RUNNING", 5, ["finishedAt"]),
        ("CONTAINER_EXITED", 0, []),
        ("CONTAINER_UNKNOWN", 5, []),
        ("CONTAINER_UNKNOWN", 0, ["finishedAt"]),
    ],
)
def test_times_that_have_not_come(state: str, finished_at: int, never: list[str]) -> None:
    status = cri_pb2.ContainerStatus(state=state, finished_at=finished_at)
    times = inspect_views.container_times(status, zone=UTC)
    assert [name for name, text in times.items() if text == NEVER] == never


def test_the_fields_depend_on_the_state() -> None:
    status = fake_container_status().status
    labels = [label for label, _ in inspect_views.container_status_block(status, NO_INFO, now=NOW)]
    assert labels == ["ID", "Name", "Attempt", "State", "Created", "Started"]
    created = cri_pb2.ContainerStatus(id="a")
    block = inspect_views.container_status_block(created, {"b": "2", "a": "1"}, now=NOW)
    assert [label for label, _ in block] == ["ID", "Name", "State", "Created", "Info"]
    assert dict(block)["Info"] == "map[a:1 b:2]"


def test_the_table_of_a_pod() -> None:
    block = inspect_views.pod_status_block(fake_pod_status().status, NO_INFO, zone=UTC)
    assert block_text(block) == capture("f-inspectp-table").output


def test_the_verbose_table_of_a_pod() -> None:
    output = capture("inspectp-table-verbose").output
    info = output.partition("Info: map[info:")[2].removesuffix("]\n")
    pod = next(pod for pod in real_pods() if pod.metadata.name == "batch-job")
    status = json_format.ParseDict(message_document(pod), cri_pb2.PodSandboxStatus())
    block = inspect_views.pod_status_block(status, {"info": info}, zone=UTC)
    assert block_text(block) == output


def test_the_document_of_a_pod() -> None:
    output = capture("inspectp-yaml").output
    recorded = yaml.safe_load(output)["status"]
    recorded["createdAt"] = "1795208874019414196"
    status = json_format.ParseDict(recorded, cri_pb2.PodSandboxStatus())
    times = inspect_views.pod_times(status, zone=UTC)
    document = status_document(status, unset_as_null=True, times=times)
    linux = document["status"]["linux"]["namespaces"]["options"]
    linux.pop("usernsOptions", None)
    assert document == yaml.load(output, _TextTimes)


class _TextTimes(yaml.SafeLoader):
    """Reads times as the text that they are."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def test_the_table_of_an_image() -> None:
    image = next(image for image in real_images() if len(image.repo_tags) == 2)
    block = inspect_views.image_status_block(image, NO_INFO)
    assert block_text(block) == capture("inspecti-table").output


def test_the_document_of_an_image_leaves_out_what_is_unset() -> None:
    image = next(image for image in real_images() if len(image.repo_tags) == 2)
    recorded = yaml.safe_load(capture("inspecti").output)
    assert status_document(image)["status"] == recorded["status"]


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("imagefsinfo-table", real_image_fs_info()),
        ("f-imagefsinfo-table", fake_image_fs_info()),
    ],
)
def test_image_filesystems(name: str, response: cri_pb2.ImageFsInfoResponse) -> None:
    out = StringIO()
    render.write_lines(inspect_views.image_filesystem_lines(response), out)
    assert out.getvalue() == capture(name).output


def test_the_document_of_image_filesystems() -> None:
    document = status_document(real_image_fs_info())
    assert document_json(document) + "\n" == capture("imagefsinfo").output
