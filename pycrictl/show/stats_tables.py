"""Resource usage of containers and pods: the tables of ``stats`` and ``statsp``. Pure.

Runtimes report CPU time since some start; shown is the difference between two samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pycrictl.show.list_views import SHORT_ID_CHARS
from pycrictl.show.render import Table
from pycrictl.units import format_size

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2

    Cpu = cri_pb2.CpuUsage | cri_pb2.WindowsCpuUsage

SIZE_DIGITS: Final = 4
NOT_MEASURED: Final = "-"
"""Shown in CPU % if the runtime took no new sample in between."""


def stats_table(
    before: Iterable[cri_pb2.ContainerStats],
    after: Iterable[cri_pb2.ContainerStats],
    *,
    show_all: bool = False,
) -> Table:
    """Make a row for each container of both samples, in the order of the second.

    Containers that use neither CPU nor memory, such as stopped ones, are left out unless
    ``show_all`` is set.
    """
    earlier = {stats.attributes.id: stats for stats in before}
    rows = []
    for stats in after:
        memory = stats.memory.working_set_bytes.value
        is_idle = not stats.cpu.usage_core_nano_seconds.value and not memory
        if stats.attributes.id not in earlier or (is_idle and not show_all):
            continue
        row = (
            stats.attributes.id[:SHORT_ID_CHARS],
            stats.attributes.metadata.name,
            cpu_percent(earlier[stats.attributes.id].cpu, stats.cpu),
            format_size(memory, SIZE_DIGITS),
            format_size(stats.writable_layer.used_bytes.value, SIZE_DIGITS),
            str(stats.writable_layer.inodes_used.value),
            format_size(stats.swap.swap_usage_bytes.value, SIZE_DIGITS),
        )
        rows.append(row)
    return Table(("CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"), rows)


def pod_stats_table(
    before: Iterable[cri_pb2.PodSandboxStats], after: Iterable[cri_pb2.PodSandboxStats]
) -> Table:
    """Make a row for each pod of both samples that uses anything."""
    earlier = {stats.attributes.id: stats for stats in before}
    rows = []
    for stats in after:
        cpu, memory = _pod_usage(stats)
        is_idle = not cpu.usage_core_nano_seconds.value and not memory
        if is_idle or stats.attributes.id not in earlier:
            continue
        row = (
            stats.attributes.metadata.name,
            stats.attributes.id[:SHORT_ID_CHARS],
            cpu_percent(_pod_usage(earlier[stats.attributes.id])[0], cpu),
            format_size(memory, SIZE_DIGITS),
        )
        rows.append(row)
    return Table(("POD", "POD ID", "CPU %", "MEM"), rows)


def cpu_percent(before: Cpu, after: Cpu) -> str:
    """Return the share of one core between two samples, in percent: 200.00 is two cores."""
    if not after.usage_core_nano_seconds.value:
        return "0.00"
    elapsed_ns = after.timestamp - before.timestamp
    if elapsed_ns <= 0:
        return NOT_MEASURED
    used_ns = after.usage_core_nano_seconds.value - before.usage_core_nano_seconds.value
    return f"{100 * used_ns / elapsed_ns:.2f}"


def _pod_usage(stats: cri_pb2.PodSandboxStats) -> tuple[Cpu, int]:
    if stats.HasField("windows"):
        return stats.windows.cpu, stats.windows.memory.working_set_bytes.value
    return stats.linux.cpu, stats.linux.memory.working_set_bytes.value
