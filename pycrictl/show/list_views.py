"""Views of the listing commands: a row of a table, a block of fields. Pure.

Headings, order, cuts and words are crictl's. Nothing is escaped here; ``render`` does that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl.show.render import Block, Field, Table
from pycrictl.units import format_age, format_size, plural

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Tone

NONE: Final = "<none>"
UNKNOWN: Final = "unknown"
DEFAULT_RUNTIME: Final = "(default)"
SHORT_ID_CHARS: Final = 13
RUNTIME_CONFIG_WIDTH: Final = 10

DIGEST_PREFIX: Final = "sha256:"

POD_NAME_LABEL: Final = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL: Final = "io.kubernetes.pod.namespace"
POD_UID_LABEL: Final = "io.kubernetes.pod.uid"

POD_STATES: Final = ("Ready", "NotReady")
CONTAINER_STATES: Final = ("Created", "Running", "Exited")
UNKNOWN_STATE: Final = "Unknown"

NEVER: Final = "0001-01-01T00:00:00Z"
"""Stands for a time that is unknown or has not come yet."""

SIZE_DIGITS: Final = 4
NOT_MEASURED: Final = "-"
"""Shown in CPU % if the runtime took no new sample in between."""

_NS_PER_S: Final = 1_000_000_000

# A name with a tag may look like a short digest: cafe:1.
_DIGEST: Final = r"(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})"


def version_lines(version: cri_pb2.VersionResponse) -> list[str]:
    return [
        f"Version:  {version.version}",
        f"RuntimeName:  {version.runtime_name}",
        f"RuntimeVersion:  {version.runtime_version}",
        f"RuntimeApiVersion:  {version.runtime_api_version}",
    ]


def images_table(
    images: Iterable[cri_pb2.Image],
    *,
    digests: bool = False,
    pinned: bool = False,
    no_trunc: bool = False,
    wide: bool = False,
    used: Collection[str] | None = None,
) -> Table:
    """Make a row for each tag of each image, and one for each image without tags.

    The wide table has DIGEST, PINNED, USER, IN USE and a line with the sum; ``used`` are the IDs of
    images in use, None if unknown.
    """
    images = list(images)
    digests, pinned = digests or wide, pinned or wide
    header = ["IMAGE", "TAG", "IMAGE ID", "SIZE"]
    if digests:
        header.insert(2, "DIGEST")
    if pinned:
        header.append("PINNED")
    if wide:
        header += ["USER", "IN USE"]
    rows = []
    for image in images:
        repository, digest = _first_digest(image)
        for name, tag in _names_and_tags(image, repository):
            row = [name, tag, _short(image.id, no_trunc), format_size(image.size, 3)]
            if digests:
                row.insert(2, _short(digest, no_trunc))
            if pinned:
                row.append(_is(image.pinned))
            if wide:
                row += [_user(image), UNKNOWN if used is None else _is(image.id in used)]
            rows.append(tuple(row))
    return Table(tuple(header), rows, footer=_images_sum(images, used) if wide else "")


def _images_sum(images: Sequence[cri_pb2.Image], used: Collection[str] | None) -> str:
    def sizes(found: Sequence[cri_pb2.Image]) -> str:
        total = format_size(sum(image.size for image in found), 3)
        return f"{plural(len(found), 'image')}, {total}"

    text = f"total: {sizes(images)}"
    if used is not None:
        text += f"; not in use: {sizes([image for image in images if image.id not in used])}"
    return text


def _is(value: bool) -> str:
    return "true" if value else "false"


def image_block(image: cri_pb2.Image) -> Block:
    block: list[Field] = [("ID", image.id)]
    block += [("RepoTags", tag) for tag in image.repo_tags]
    block += [("RepoDigests", digest) for digest in image.repo_digests]
    if image.size:
        block.append(("Size", str(image.size)))
    if image.HasField("uid"):
        # The text form of the message, in which zero is nothing.
        block.append(("Uid", f"value:{image.uid.value}" if image.uid.value else ""))
    if image.username:
        block.append(("Username", image.username))
    if image.pinned:
        block.append(("Pinned", "true"))
    return block


def pods_table(
    pods: Iterable[cri_pb2.PodSandbox],
    *,
    now: float,
    no_trunc: bool = False,
    addresses: Mapping[str, str] | None = None,
) -> Table:
    header: tuple[str, ...] = (
        *("POD ID", "CREATED", "STATE", "NAME", "NAMESPACE", "ATTEMPT", "RUNTIME"),
        *(("IP", "UID") if addresses is not None else ()),
    )
    rows: list[tuple[str, ...]] = [
        (
            _short(pod.id, no_trunc),
            f"{age(pod.created_at, now)} ago",
            _state(POD_STATES, pod.state),
            pod.metadata.name,
            pod.metadata.namespace,
            str(pod.metadata.attempt),
            pod.runtime_handler or DEFAULT_RUNTIME,
            *((addresses.get(pod.id) or NONE, pod.metadata.uid) if addresses is not None else ()),
        )
        for pod in pods
    ]
    return Table(header, rows)


def on_screen(
    table: Table,
    first: Sequence[str],
    *,
    by: str = "",
    tones: Mapping[str, Tone] | None = None,
    other: Tone = "",
) -> Table:
    """Return crictl's table for a terminal: the columns ``first``, then the others.

    The cells of the column ``by`` choose a row's colour from ``tones``, or ``other``.
    """
    names = [*first, *(name for name in table.header if name not in first)]
    order = [table.header.index(name) for name in names]
    rows = [tuple(row[index] for index in order) for row in table.rows]
    whole = tuple(name for name in ("NAME", "STATE", "TAG") if name in names)
    colours = [(tones or {}).get(row[names.index(by)], other) for row in rows] if by else []
    return Table(tuple(names), rows, footer=table.footer, whole=whole, tones=colours)


def pod_block(pod: cri_pb2.PodSandbox) -> Block:
    block: list[Field] = [
        ("ID", pod.id),
        ("Name", pod.metadata.name),
        ("UID", pod.metadata.uid),
        ("Namespace", pod.metadata.namespace),
    ]
    if pod.metadata.attempt:
        block.append(("Attempt", str(pod.metadata.attempt)))
    block.append(("Status", _state(POD_STATES, pod.state)))
    block.append(("Created", go_time(pod.created_at)))
    block += maps(pod)
    block.append(("Runtime", pod.runtime_handler or DEFAULT_RUNTIME))
    return block


class ContainerExit(NamedTuple):
    exit_code: int
    reason: str


def containers_table(
    containers: Iterable[cri_pb2.Container],
    *,
    now: float,
    no_trunc: bool = False,
    image_names: Mapping[str, str] | None = None,
    wide: bool = False,
    ends: Mapping[str, ContainerExit] | None = None,
    owners: Mapping[str, tuple[str, str]] | None = None,
) -> Table:
    """Make a row for each container.

    ``ends`` and ``owners`` are by the ID of a container or a sandbox; without ``ends`` there is
    neither EXIT nor REASON. ``owners`` (namespace, name) stand in for labels.
    """
    header: tuple[str, ...] = (
        *("CONTAINER", "IMAGE", "CREATED", "STATE", "NAME", "ATTEMPT"),
        *("POD ID", "POD", "NAMESPACE"),
        *(("IMAGE ID", "POD UID") if wide else ()),
        *(("EXIT", "REASON") if ends is not None else ()),
    )
    rows: list[tuple[str, ...]] = []
    for container in containers:
        image = container.image.image
        namespace, pod = (owners or {}).get(container.pod_sandbox_id, (UNKNOWN, UNKNOWN))
        row: tuple[str, ...] = (
            _short(container.id, no_trunc),
            (image_names or {}).get(image) or shown_image(image, no_trunc=no_trunc),
            f"{age(container.created_at, now)} ago",
            _state(CONTAINER_STATES, container.state),
            container.metadata.name,
            str(container.metadata.attempt),
            _short(container.pod_sandbox_id, no_trunc),
            container.labels.get(POD_NAME_LABEL, pod),
            container.labels.get(POD_NAMESPACE_LABEL, namespace),
        )
        if wide:
            image_id = container.image_id or container.image_ref
            row += (_short(image_id, no_trunc), container.labels.get(POD_UID_LABEL, UNKNOWN))
        if ends is not None:
            end = ends.get(container.id)
            row += (NONE, NONE) if end is None else (str(end.exit_code), end.reason or NONE)
        rows.append(row)
    return Table(header, rows)


def containers_on_screen(table: Table) -> Table:
    names = ["RESTARTS" if name == "ATTEMPT" else name for name in table.header]
    rows = [tuple("" if cell == NONE else cell for cell in row) for row in table.rows]
    shown = on_screen(
        Table(tuple(names), rows),
        ("NAME", "STATE", "EXIT", "REASON", "RESTARTS", "POD", "NAMESPACE", "CREATED"),
        by="EXIT",
        tones={"": "", "0": "quiet"},
        other="bad",
    )
    return shown._replace(optional=("EXIT", "REASON"))


def container_block(container: cri_pb2.Container, *, now: float) -> Block:
    block: list[Field] = [
        ("ID", container.id),
        ("PodID", container.pod_sandbox_id),
        ("Namespace", container.labels.get(POD_NAMESPACE_LABEL, UNKNOWN)),
        ("Name", container.metadata.name),
        ("Attempt", str(container.metadata.attempt)),
        ("State", _state(CONTAINER_STATES, container.state)),
        ("Image", container.image.image),
        ("Created", f"{age(container.created_at, now)} ago"),
    ]
    return block + maps(container)


def shown_image(image: str, *, no_trunc: bool = False) -> str:
    if no_trunc or not image.startswith("sha") or not re.fullmatch(_DIGEST, image):
        return image
    return image.partition(":")[2][:SHORT_ID_CHARS]


def runtime_config_table(config: cri_pb2.RuntimeConfigResponse) -> Table | None:
    if not config.HasField("linux"):
        return None
    driver = enum_name(config.linux, "cgroup_driver")
    return Table(("cgroup driver:", driver), (), min_width=RUNTIME_CONFIG_WIDTH)


def maps(
    thing: cri_pb2.PodSandbox
    | cri_pb2.Container
    | cri_pb2.PodSandboxStatus
    | cri_pb2.ContainerStatus,
) -> list[Field]:
    both = (("Labels", thing.labels), ("Annotations", thing.annotations))
    return [(title, entries) for title, entries in both if entries]


def enum_name(message: Message, field: str) -> str:
    """Return the name of an enum field's value; its number if this program has no name for it."""
    number: int = getattr(message, field)
    descriptor = message.DESCRIPTOR.fields_by_name[field].enum_type
    assert descriptor is not None
    value = descriptor.values_by_number.get(number)
    return value.name if value else str(number)


def _state(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else UNKNOWN_STATE


def _user(image: cri_pb2.Image) -> str:
    if image.HasField("uid"):
        return str(image.uid.value)
    return image.username or NONE


def _first_digest(image: cri_pb2.Image) -> tuple[str, str]:
    if not image.repo_digests:
        return NONE, NONE
    parts = image.repo_digests[0].split("@")
    if len(parts) != 2:
        return "errorName", "errorRepoDigest"
    return parts[0], parts[1]


def _names_and_tags(image: cri_pb2.Image, repository: str) -> list[tuple[str, str]]:
    if not image.repo_tags:
        return [(repository, NONE)]
    cells = []
    for text in image.repo_tags:
        name, colon, tag = text.rpartition(":")
        if not colon:
            cells.append(("errorRepoTag", "errorRepoTag"))
        else:
            cells.append((repository if name == NONE else name, tag))
    return cells


def _short(identifier: str, no_trunc: bool) -> str:
    if no_trunc:
        return identifier
    return identifier.removeprefix(DIGEST_PREFIX)[:SHORT_ID_CHARS]


def age(time_ns: int, now: float) -> str:
    """Say how long ago it was at ``now`` (seconds since 1970): ``5 minutes``, ``About an hour``."""
    return format_age(now - time_ns / _NS_PER_S)


def rfc3339(time_ns: int) -> str:
    """Format as ``2023-11-14T22:13:20.123456789Z``; trailing zeros of the fraction are cut."""
    moment, fraction = _local_time(time_ns)
    seconds, offset = moment.isoformat()[:19], moment.isoformat()[19:]
    return f"{seconds}{fraction}{'Z' if offset == '+00:00' else offset}"


def go_time(time_ns: int) -> str:
    """Format as ``2023-11-14 22:13:20.123456789 +0000 UTC``."""
    moment, fraction = _local_time(time_ns)
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} {moment:%z %Z}"


def _local_time(time_ns: int) -> tuple[datetime, str]:
    # All 64-bit times lie between the years 1677 and 2262.
    seconds, fraction = divmod(time_ns, _NS_PER_S)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.astimezone(), f".{fraction:09}".rstrip("0").rstrip(".")


# Resource usage: runtimes report CPU time since some start; shown is the difference of two samples


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
