"""Properties of a tracker's views that hold for any reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pycrictl.pulls.state import LayerState, Phase, View
from tests.pulls.tracking import FINISHED, Report, Tracker, keys, layers

few_names = st.sampled_from(["", "a", "b", "c"])
numbers = st.integers(-5, 30) | st.sampled_from([2**63 - 1, -(2**63)])
phases = st.sampled_from(["", "odd", *Phase])
any_reports = st.builds(
    Report, few_names, few_names, numbers, numbers, st.sampled_from(["", "boom"]), phases,
    numbers, numbers, numbers, numbers, st.just(0.0), sums=st.none(),
    idle_s=st.floats(0.0, 1e6),
)  # fmt: skip
# A report, the pause after it, and whether the tracker's view is then requested.
histories = st.lists(st.tuples(any_reports, st.floats(0.0, 5.0), st.booleans()), max_size=30)


def views_of(history: list[tuple[Report, float, bool]], tracker: Tracker) -> list[View]:
    now = 0.0
    views = []
    for report, pause_s, is_viewed in history:
        tracker.tell(report, now=now)
        now += pause_s
        if is_viewed:
            views.append(tracker.view(now))
    return [*views, tracker.view(now)]


@given(histories)
def test_whatever_is_reported(history: list[tuple[Report, float, bool]]) -> None:
    for view in views_of(history, Tracker(max_layers=8)):
        check_numbers(view)
    views = views_of(history, Tracker())
    check_levels(views[-1], {(report.image, report.layer) for report, _, _ in history})
    check_changes(views)
    # Views in between make no difference.
    seldom = [(report, pause_s, False) for report, pause_s, _ in history]
    often = [(report, pause_s, True) for report, pause_s, _ in history]
    assert layers(views_of(seldom, Tracker())[-1]) == layers(views_of(often, Tracker())[-1])


def check_numbers(view: View) -> None:
    for item in layers(view):
        assert item.progress >= 0
        assert item.total == 0 or item.total >= item.progress
        assert item.extracted >= 0
        assert item.extracted_total == 0 or item.extracted_total >= item.extracted
        assert item.stalled_s >= 0.0
        assert item.stalled_s == 0.0 or item.phase not in FINISHED
    totals = view.sums
    assert 0 <= totals.progress <= (totals.total or totals.progress)
    assert totals.percent is None or 0.0 <= totals.percent <= 100.0
    assert 0 <= totals.done + totals.failed <= totals.count <= len(layers(view))
    assert totals.resumed >= 0
    assert totals.rate is None or totals.rate >= 0.0
    assert totals.eta_s is None or totals.eta_s >= 0.0
    assert view.dropped >= 0


def check_levels(view: View, reported: set[tuple[str, str]]) -> None:
    """Only the finest level is shown."""
    with_layers = {image for image, layer in reported if layer}
    expected = {
        (image, layer) for image, layer in reported if layer or (image not in with_layers and image)
    }
    assert {key for key in keys(view) if key != ("", "")} == expected
    if ("", "") in keys(view):
        return
    assert len(layers(view)) == len(expected)
    without_layer = [image for image, layer in expected if not layer]
    with_name = {layer for _, layer in expected if layer}
    assert view.sums.count == (len(with_name) or len(without_layer))


def check_changes(views: list[View]) -> None:
    """The changes of all views together result in the last view."""
    known = {(pull.name, layer.name): layer for view in views for pull, layer in view.changed}
    for name, pull in views[-1].pulls.items():
        for layer in pull.layers:
            told = known[name, layer.name]
            for field in LayerState.__slots__:
                assert field == "idle_s" or getattr(told, field) == getattr(layer, field)
