from __future__ import annotations

from pycrictl.pulls.model import Phase, Pull, View
from pycrictl.show.displays import per_image
from tests.show.views import DEMO, MIB, layer, view


def test_what_is_known_of_an_image() -> None:
    items = [
        layer(1, Phase.DONE, 3, 3),
        layer(2, Phase.PRESENT, 4, 4),
        layer(3, Phase.WAITING, 0, 5),
        layer(4, Phase.FAILED, 1, 6),
        layer(5, Phase.DOWNLOADING, 1, 0),
    ]
    pull = view(items).pulls[DEMO]
    assert per_image.name(pull) == DEMO
    assert per_image.counts(pull) == "2/5 done · 1 waiting · 1 failed"
    assert pull.has_layers
    assert not pull.is_over


def test_an_image_is_over_when_all_arrived_or_failed() -> None:
    done, failed = layer(1, Phase.DONE), layer(2, Phase.FAILED)
    assert Pull(DEMO, (done, failed)).is_over
    assert not Pull(DEMO, (done, failed)).is_complete
    assert Pull(DEMO, (done,)).is_complete
    assert not Pull(DEMO, (done, layer(3, Phase.EXTRACTING))).is_over


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
