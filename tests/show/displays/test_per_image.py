from __future__ import annotations

from pycrictl.pulls.model import Phase, View
from pycrictl.show.displays import per_image
from tests.show.views import MIB, layer, view


def history_of(*views: View, forget: str = "") -> tuple[str, list[str]]:
    """The last line of image ``a`` after these views, and what was noted."""
    notes: list[str] = []
    history = per_image.History(notes.append)
    for each in views:
        history.look(each)
        history.forget([forget] if each is views[0] else [])
    return history.summary(history.pulls[0]), notes


def test_the_time_stops_with_the_pull_and_goes_on_with_it() -> None:
    running, over = layer(1, image="a"), layer(1, Phase.DONE, MIB, MIB, image="a")
    story = [view([running], 10.0), view([over], 15.0), view([over], 20.0), view([running], 22.0)]
    assert history_of(*story[:3])[0] == "1 layer  1.0 MiB  in 5.0 s"
    assert history_of(*story)[0] == "at 0 B  0 of 1 layer done  after 12 s"
    assert history_of(*story, forget="a")[0] == "at 0 B  0 of 1 layer done  after 7.0 s"
    assert history_of(*story, forget="b")[0].endswith("after 12 s")


def test_says_once_that_items_are_left_out() -> None:
    _, notes = history_of(*(view([layer(1)], now=now, dropped=min(now, 7)) for now in range(10)))
    assert notes == ["only 1 items are kept; others were reported and are not shown"]
