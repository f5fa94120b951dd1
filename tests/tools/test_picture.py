"""The recording in README.md."""

from __future__ import annotations

import json
import re

import pytest

from tools.picture import PICTURE, from_first_bar


def test_a_recording_begins_with_a_bar() -> None:
    head = {"version": 2, "width": 80, "height": 24}
    events = [[0.5, "o", "starting"], [6.0, "o", " 10%|\u2588 |"], [7.5, "o", " 20%|\u2588 |"]]
    cast = "\n".join(map(json.dumps, [head, *events]))
    lines = from_first_bar(cast).splitlines()
    assert json.loads(lines[0]) == head
    assert [json.loads(line)[0] for line in lines[1:]] == [0.0, 0.0, 1.5]
    with pytest.raises(ValueError, match="no bar"):
        from_first_bar("\n".join(map(json.dumps, [head, events[0]])))


def test_the_first_frame_of_the_picture_has_bars() -> None:
    """The frames are below each other; the animation moves up from one to the next."""
    picture = PICTURE.read_text("utf-8")
    height = int(re.findall(r"translateY\(-(\d+)px\)", picture)[0])
    lines = dict(re.findall(r'<g id="(\w+)">(.*?)</g>', picture))
    used = re.findall(r'<use xlink:href="#(\w+)" y="(\d+)"', picture)
    first = [re.sub(r"<[^>]*>", "", lines[name]) for name, y in used if int(y) < height]
    assert [line for line in first if "%|" in line]
