"""Rows and blocks beyond those that whole commands are replayed with."""

from __future__ import annotations

import time

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show import list_views
from tests.captures.fixtures import utc
from tests.captures.scene import fake_containers, hex_id, real_images

__all__ = ["utc"]

NOW = 1_795_209_010.0
TIME_NS = 1_700_000_000_123_456_789


def test_whole_ids_and_digests() -> None:
    table = list_views.images_table(real_images()[:2], digests=True, no_trunc=True)
    assert table.header == ("IMAGE", "TAG", "DIGEST", "IMAGE ID", "SIZE")
    assert table.rows[1] == (
        "127.0.0.1:5555/app",
        "v1",
        "sha256:7e62bdf30d0a1149d63289d7d1c8d19edb7d668721ee5d27a2e5db4032d175d5",
        "sha256:41388c7310587741c193497daa9708461829e9e78af734d08bc5a4ada7d99131",
        "1.1MB",
    )


def test_every_field_of_a_pod_block() -> None:
    pod = cri_pb2.PodSandbox(id="a", state=7)  # type: ignore[arg-type]  # a state of the future
    pod.metadata.name, pod.metadata.attempt = "web", 2
    pod.labels["b"] = "1"
    assert list_views.pod_block(pod) == [
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
    container = fake_containers(NOW)[1]
    names = {container.image.image: "docker.io/library/redis:7"}
    table = list_views.containers_table([container], now=NOW, image_names=names)
    assert table.rows[0][1] == "docker.io/library/redis:7"
    assert list_views.containers_table([cri_pb2.Container()], now=NOW).rows == [
        ("", "", "56 years ago", "Created", "", "0", "", "unknown", "unknown")
    ]


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (TIME_NS, "2023-11-14T22:13:20.123456789Z"),
        (TIME_NS // 10**9 * 10**9, "2023-11-14T22:13:20Z"),
        (1_795_208_878_905_045_660, "2026-11-20T21:07:58.90504566Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
    ],
)
def test_times_have_the_form_of_rfc3339(time_ns: int, text: str) -> None:
    assert list_views.rfc3339(time_ns) == text


@pytest.mark.parametrize(
    ("name", "time_ns", "rfc3339", "go_time"),
    [
        (
            "UTC",
            TIME_NS,
            "2023-11-14T22:13:20.123456789Z",
            "2023-11-14 22:13:20.123456789 +0000 UTC",
        ),
        (
            "Asia/Kolkata",
            TIME_NS,
            "2023-11-15T03:43:20.123456789+05:30",
            "2023-11-15 03:43:20.123456789 +0530 IST",
        ),
        (
            "EST5EDT,M3.2.0,M11.1.0",
            TIME_NS,
            "2023-11-14T17:13:20.123456789-05:00",
            "2023-11-14 17:13:20.123456789 -0500 EST",
        ),
        (
            "Europe/Berlin",
            15 * 10**17,
            "2017-07-14T04:40:00+02:00",
            "2017-07-14 04:40:00 +0200 CEST",
        ),
    ],
)
def test_times_are_local(
    name: str, time_ns: int, rfc3339: str, go_time: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", name)
    time.tzset()
    assert (list_views.rfc3339(time_ns), list_views.go_time(time_ns)) == (rfc3339, go_time)
