"""Resource usage of containers and pods: the tables of ``stats`` and ``statsp``. Pure.

Runtimes report CPU time since some start; shown is the difference between two samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pycrictl.show.list_views import SHORT_ID_CHARS
from pycrictl.show.render import Table
from pycrictl.units import format_size

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2

SIZE_DIGITS: Final = 4
NOT_MEASURED: Final = "-"
"""Shown in CPU % if the runtime took no new sample in between."""


def stats_table(
    before: Iterable[cri_pb2.ContainerStats],
    after: Iterable[cri_pb2.ContainerStats],
    *,
    show_all: bool = False,
) -> Table:
    rows = [
        (
            stats.attributes.id[:SHORT_ID_CHARS],
            stats.attributes.metadata.name,
            cpu,
            memory,
            format_size(stats.writable_layer.used_bytes.value, SIZE_DIGITS),
            str(stats.writable_layer.inodes_used.value),
            format_size(stats.swap.swap_usage_bytes.value, SIZE_DIGITS),
        )
        for stats, cpu, memory in _measured(before, after, show_all=show_all)
    ]
    return Table(("CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"), rows)


def pod_stats_table(
    before: Iterable[cri_pb2.PodSandboxStats], after: Iterable[cri_pb2.PodSandboxStats]
) -> Table:
    rows = [
        (stats.attributes.metadata.name, stats.attributes.id[:SHORT_ID_CHARS], cpu, memory)
        for stats, cpu, memory in _measured(before, after)
    ]
    return Table(("POD", "POD ID", "CPU %", "MEM"), rows)


def _measured(
    before: Iterable[Any], after: Iterable[Any], *, show_all: bool = False
) -> Iterator[tuple[Any, str, str]]:
    earlier = {stats.attributes.id: stats for stats in before}
    for stats in after:
        usage = getattr(stats, "linux", stats)
        memory = usage.memory.working_set_bytes.value
        is_idle = not usage.cpu.usage_core_nano_seconds.value and not memory
        first = earlier.get(stats.attributes.id)
        if first is not None and (show_all or not is_idle):
            cpu = cpu_percent(getattr(first, "linux", first).cpu, usage.cpu)
            yield stats, cpu, format_size(memory, SIZE_DIGITS)


def cpu_percent(before: cri_pb2.CpuUsage, after: cri_pb2.CpuUsage) -> str:
    """Return the share of one core between two samples, in percent: 200.00 is two cores."""
    if not after.usage_core_nano_seconds.value:
        return "0.00"
    elapsed_ns = after.timestamp - before.timestamp
    if elapsed_ns <= 0:
        return NOT_MEASURED
    used_ns = after.usage_core_nano_seconds.value - before.usage_core_nano_seconds.value
    return f"{100 * used_ns / elapsed_ns:.2f}"
