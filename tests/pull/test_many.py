"""Lists of images: lines and YAML, and what is none."""

from __future__ import annotations

import pytest

from pycrictl.errors import ConfigError
from pycrictl.pull.many import MAX_IMAGES, images_in


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("a:1\nb:2\n", ["a:1", "b:2"]),
        ("# head\n\n  a:1  # why\n a:1\r\nb@sha256:1#x\n", ["a:1", "b@sha256:1#x"]),
        ("images:\n- a:1\n- name: b:2\n- image: c:3\n", ["a:1", "b:2", "c:3"]),
        ('kind: List\nimages: ["a:1"]\n', ["a:1"]),
    ],
)
def test_lists(text: str, images: list[str]) -> None:
    assert images_in(text) == images


@pytest.mark.parametrize(
    "text",
    [
        *("", "# nothing\n", "a:1 b:2\n", "images: a\n", "images:\n- 5\n", "images:\n- {}\n"),
        *("images: [\n", "images: []\n", "\n".join(map(str, range(MAX_IMAGES + 1)))),
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ConfigError):
        images_in(text)
