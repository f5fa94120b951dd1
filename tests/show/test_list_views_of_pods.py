"""Rows and blocks of pods and containers."""

from __future__ import annotations

from datetime import UTC
from io import StringIO

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show import list_views, render
from tests.captures import Capture, load
from tests.captures.scene import fake_containers, fake_pods, hex_id, real_containers, real_pods

EARLY = 1_795_208_999.5
"""When "About a minute ago" was printed of the newest container: 2026-11-20T21:09:59.5Z."""
LATE = 1_795_209_010.0


def recordings(*prefixes: str) -> list[Capture]:
    return [
        recorded
        for prefix in prefixes
        for recorded in load(prefix)
        if recorded.rc == 0
        and not recorded.is_help
        and not {"json", "yaml"} & set(recorded.command.split())
    ]


def is_chosen(identifier: str, recorded: Capture) -> bool:
    """Whether the recording shows the object, whole or cut."""
    starts = (identifier, f"{identifier[:13]} ", f"ID: {identifier}")
    return any(line.startswith(starts) for line in recorded.output.splitlines())


@pytest.mark.parametrize("recorded", recordings("pods", "f-pods", "t-pods"), ids=lambda r: r.name)
def test_pods_are_shown_as_crictl_shows_them(recorded: Capture) -> None:
    pods = fake_pods(LATE) if recorded.name.startswith("f-") else real_pods()
    pods = [pod for pod in pods if is_chosen(pod.id, recorded)]
    words = recorded.command.split()
    out = StringIO()
    if "-q" in words and "x" not in words:
        render.write_lines([pod.id for pod in pods], out)
    elif "-v" in words:
        render.write_blocks([list_views.pod_block(pod, zone=UTC) for pod in pods], out)
    else:
        no_trunc = "--no-trunc" in words
        render.write_table(list_views.pods_table(pods, now=LATE, no_trunc=no_trunc), out)
    assert out.getvalue() == recorded.output


@pytest.mark.parametrize("recorded", recordings("ps", "f-ps"), ids=lambda r: r.name)
def test_containers_are_shown_as_crictl_shows_them(recorded: Capture) -> None:
    is_fake = recorded.name.startswith("f-")
    now = EARLY if "About a minute" in recorded.output and not is_fake else LATE
    containers = fake_containers(now) if is_fake else real_containers()
    containers = [container for container in containers if is_chosen(container.id, recorded)]
    words = recorded.command.split()
    out = StringIO()
    if "-q" in words:
        render.write_lines([container.id for container in containers], out)
    elif "-v" in words:
        blocks = [list_views.container_block(container, now=now) for container in containers]
        render.write_blocks(blocks, out)
    else:
        names = {"127.0.0.1:5555/busybox:1": "127.0.0.1:5555/busybox:1"} if "-r" in words else None
        table = list_views.containers_table(
            containers, now=now, no_trunc="--no-trunc" in words, image_names=names
        )
        render.write_table(table, out)
    assert out.getvalue() == recorded.output


def test_every_field_of_a_pod_block() -> None:
    pod = cri_pb2.PodSandbox(id="a", state=7)  # type: ignore[arg-type]  # a state of the future
    pod.metadata.name, pod.metadata.attempt = "web", 2
    pod.labels["b"] = "1"
    assert list_views.pod_block(pod, zone=UTC) == [
        ("ID", "a"),
        ("Name", "web"),
        ("UID", ""),
        ("Namespace", ""),
        ("Attempt", "2"),
        ("Status", "Unknown"),
        ("Created", "1970-01-01 00:00:00 +0000 UTC"),
        ("Labels", {"b": "1"}),
        ("Runtime", "(default)"),
    ]


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (f"sha256:{hex_id(7)}", "0707070707070"),
        (f"sha512:{hex_id(9)}{hex_id(8)}", "0909090909090"),
        ("sha256:07", "sha256:07"),
        ("busybox:1", "busybox:1"),
        ("sha256:xyz", "sha256:xyz"),
        ("cafe:1234", "cafe:1234"),
        ("", ""),
    ],
)
def test_image_cells(image: str, shown: str) -> None:
    assert list_views.shown_image(image) == shown
    assert list_views.shown_image(image, no_trunc=True) == image


def test_image_names_stand_in_for_digests() -> None:
    container = fake_containers(LATE)[1]
    names = {container.image.image: "docker.io/library/redis:7"}
    table = list_views.containers_table([container], now=LATE, image_names=names)
    assert table.rows[0][1] == "docker.io/library/redis:7"
    assert list_views.containers_table([cri_pb2.Container()], now=LATE).rows == [
        ("", "", "56 years ago", "Created", "", "0", "", "unknown", "unknown")
    ]
