from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.lists.images import apply_filters, parse_filters, select_by_name, sort_images
from pycrictl.show import list_views, render
from pycrictl.show.protodata import list_document
from pycrictl.show.render import Table
from tests.captures import Capture, load
from tests.captures.scene import fake_images, fake_version, real_images, real_version

IMAGE_RECORDINGS = [
    recorded
    for prefix in ("images", "f-images", "t-images", "m-images")
    for recorded in load(prefix)
    if not recorded.is_help
]

# Where the lists differ from crictl's on purpose.
SELECTED = {
    # containerd ignores the name, so crictl prints all images.
    "images-repo-only": ["127.0.0.1:5555/busybox"],
    # crictl compares the beginning of an ID with its "sha256:".
    "images-filter-since-id": ["127.0.0.1:5555/app"],
    "f-images-filter-before-id": [
        *("c.io/dig", "<none>", "d.io/none", "e.io/big", "localhost:5000/x/y", "errorRepoTag")
    ],
}


def printed(words: Sequence[str], images: list[cri_pb2.Image]) -> str:
    """What the words of a recorded command print of ``images``."""
    name, filters, output = "", [], "table"
    todo = list(words)
    flags = set()
    while todo:
        word = todo.pop(0)
        if word == "-f":
            filters.append(todo.pop(0))
        elif word == "-o":
            output = todo.pop(0)
        elif word.startswith("-"):
            flags.add(word)
        else:
            name = word
    images = apply_filters(select_by_name(sort_images(images), name), parse_filters(filters))
    out = StringIO()
    if output == "yaml":
        render.write_document_yaml(list_document("images", images), out)
    elif "-q" in flags:
        render.write_lines([image.id for image in images], out)
    elif "-v" in flags:
        render.write_blocks([list_views.image_block(image) for image in images], out)
    else:
        table = list_views.images_table(
            images,
            digests="--digests" in flags,
            pinned="--pinned" in flags,
            no_trunc="--no-trunc" in flags,
        )
        render.write_table(table, out)
    return out.getvalue()


def scene_images(recorded: Capture) -> list[cri_pb2.Image]:
    match recorded.name[:2]:
        case "f-":
            return fake_images()
        case "t-":
            return []
        case "m-":
            return [image for image in real_images() if image.repo_tags][:-1]
        case _:
            return real_images()


@pytest.mark.parametrize("recorded", IMAGE_RECORDINGS, ids=lambda recorded: recorded.name)
def test_images_are_shown_as_crictl_shows_them(recorded: Capture) -> None:
    images = scene_images(recorded)
    words = recorded.command.split()[2:]
    if recorded.name == "images-filter-since-id":
        busybox = next(image for image in images if "busybox" in str(image.repo_tags))
        words = ["-f", f"since={busybox.id[7:19]}"]
    expected = recorded.output
    if recorded.name in SELECTED:
        lines = expected.splitlines()
        kept = [line for line in lines[1:] if line.split()[0] in SELECTED[recorded.name]]
        # Columns are as wide as what is left in them.
        table = Table(
            tuple(lines[0].replace("IMAGE ID", "IMAGE_ID").split()),
            [tuple(line.split()) for line in kept],
        )
        out = StringIO()
        render.write_table(table, out)
        expected = out.getvalue().replace("IMAGE_ID", "IMAGE ID")
        assert len(expected) < len(recorded.output)
    assert printed(words, images) == expected
    assert printed(words, images[::-1]) == expected  # whatever order the runtime has


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


def test_an_empty_message_is_a_row() -> None:
    table = list_views.images_table([cri_pb2.Image()], digests=True, pinned=True)
    assert table.rows == [("<none>", "<none>", "<none>", "", "0B", "false")]
    assert list_views.image_block(cri_pb2.Image()) == [("ID", "")]


@pytest.mark.parametrize(
    ("name", "version"),
    [("version", real_version()), ("f-info-tracing", fake_version())],
)
def test_version(name: str, version: cri_pb2.VersionResponse) -> None:
    out = StringIO()
    render.write_lines(list_views.version_lines(version), out)
    assert out.getvalue() == load(name)[0].output
