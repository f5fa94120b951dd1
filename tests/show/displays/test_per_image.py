from __future__ import annotations

from pycrictl.progress.tracker import Awaited, Phase
from pycrictl.show.displays import per_image
from tests.show.views import DEMO, MIB, layer, view


def test_images_come_in_the_order_of_their_first_items() -> None:
    items = [layer(1, image="b"), layer(2, image="a"), layer(3, image="b")]
    pulls = per_image.by_image(items)
    assert [(pull.image, len(pull.items)) for pull in pulls] == [("b", 2), ("a", 1)]


def test_what_is_known_of_an_image() -> None:
    (pull,) = per_image.by_image(
        [
            layer(1, Phase.DONE, 3, 3),
            layer(2, Phase.PRESENT, 4, 4),
            layer(3, Phase.WAITING, 0, 5),
            layer(4, Phase.FAILED, 1, 6),
            layer(5, Phase.DOWNLOADING, 1, 0),
        ]
    )
    assert pull.name == DEMO
    assert (pull.progress, pull.total) == (9, 18)
    assert pull.counts == "2/5 done · 1 waiting · 1 failed"
    assert pull.has_layers
    assert not pull.is_over


def test_an_image_is_over_when_all_arrived_or_failed() -> None:
    done, failed = layer(1, Phase.DONE), layer(2, Phase.FAILED)
    assert per_image.ImagePull(DEMO, (done, failed)).is_over
    assert not per_image.ImagePull(DEMO, (done, failed)).is_complete
    assert per_image.ImagePull(DEMO, (done,)).is_complete
    assert not per_image.ImagePull(DEMO, (done, layer(3, Phase.EXTRACTING))).is_over


def test_only_a_download_stalls() -> None:
    assert per_image.is_stalled(layer(1, Phase.DOWNLOADING, idle_s=30.0))
    assert not per_image.is_stalled(layer(1, Phase.DOWNLOADING, idle_s=29.0))
    assert not per_image.is_stalled(layer(1, Phase.EXTRACTING, idle_s=99.0))
    assert per_image.stall(layer(1, idle_s=42.9)) == "no data for 42 s"


def test_the_stopwatch_stops_with_the_pull_and_goes_on_with_it() -> None:
    watch = per_image.Stopwatch()
    running = [per_image.ImagePull("a", (layer(1),))]
    over = [per_image.ImagePull("a", (layer(1, Phase.DONE),))]
    watch.look(running, 10.0)
    assert watch.elapsed_s("a", 12.0) == 2.0
    watch.look(over, 15.0)
    watch.look(over, 20.0)
    assert watch.elapsed_s("a", 99.0) == 5.0
    watch.look(running, 21.0)
    assert watch.elapsed_s("a", 22.0) == 12.0
    assert watch.elapsed_s("unknown", 22.0) == 0.0


def test_the_stopwatch_begins_anew_for_an_image_that_it_forgot() -> None:
    watch = per_image.Stopwatch()
    pulls = [per_image.ImagePull("a", (layer(1),)), per_image.ImagePull("b", (layer(2),))]
    watch.look(pulls, 10.0)
    watch.forget(["a", "unknown"])
    watch.look(pulls, 20.0)
    assert watch.elapsed_s("a", 22.0) == 2.0
    assert watch.elapsed_s("b", 22.0) == 12.0


def test_what_is_said_of_a_pull_that_waits() -> None:
    assert per_image.awaited(Awaited(DEMO, True, 9.9)) == ("waiting for the registry", "waiting")
    assert per_image.awaited(Awaited(DEMO, False, 70.5)) == (
        "waiting for the runtime, 1 min 10 s",
        "waiting, 1 min 10 s",
    )
    assert per_image.awaited_name(Awaited("", True, 0.0)) == "an image"
    assert per_image.awaited_name(Awaited("a\x1b[1m", True, 0.0)) == "a\\x1b[1m"


def test_totals_words() -> None:
    items = [layer(1, progress=38 * MIB, total=61 * MIB), layer(2, Phase.FAILED)]
    words = per_image.totals_words(view(items, rate=10.2 * MIB, eta_s=2.0))
    assert words == ("38.0/61.0 MiB", " 10.2 MiB/s", "ETA 0:02", "0/2 layers", "1 failed")
    words = per_image.totals_words(view([layer(name="", progress=5)]))
    assert words == ("5 B", "", "", "0/1 image", "")
