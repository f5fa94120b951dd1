"""Items and sums handed on to others, as the reports that trackers take. Pure."""

from __future__ import annotations

from pycrictl.pulls.model import COMPLETE, Item, Phase, Totals
from pycrictl.wire.progress import MAX_TEXT, Report


def report_of(item: Item, image: str, *, is_done: bool = False) -> Report:
    """Return the report on an item.

    Args:
        item: as it was seen.
        image: the name for those who watch.
        is_done: its pull has succeeded; the last look at it was before.
    """
    phase, progress = item.phase, item.progress
    if is_done and phase not in COMPLETE:
        phase, progress = Phase.DONE, item.total
    extracted_total = 0 if item.is_estimated else item.extracted_total
    return Report(
        image=image,
        layer=item.layer,
        progress=progress,
        total=item.total,
        error=item.error[:MAX_TEXT] if phase is Phase.FAILED else "",
        phase=phase,
        queue_position=item.queue_position,
        extracted=extracted_total if phase is Phase.DONE else item.extracted,
        extracted_total=extracted_total,
        resumed=item.resumed,
        behind=item.behind,
        digest=item.digest,
        idle_s=round(item.idle_s, 1),
    )


def with_sums(reports: list[Report], sums: Totals | None) -> list[Report]:
    """Return the reports on an image with its sums, which one of them carries."""
    if reports and sums is not None:
        reports[0] = reports[0]._replace(sums=sums.to_json())
    return reports
