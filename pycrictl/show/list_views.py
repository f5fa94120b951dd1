"""Views of the list commands: table rows and blocks of fields. Pure.

Headings, order, truncation and wording are crictl's. ``render`` escapes the text, not this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl.base.units import DIGEST_PREFIX, SHORT_ID_CHARS, format_age, format_size
from pycrictl.show.columns import Column, reordered
from pycrictl.show.render import Block, Table

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl._proto import cri_pb2

NONE: Final = "<none>"
UNKNOWN: Final = "unknown"
DEFAULT_RUNTIME: Final = "(default)"
RUNTIME_CONFIG_WIDTH: Final = 10


POD_LABELS: Final = "io.kubernetes.pod."
"""Beginning of the labels for the name, namespace and uid of a container's pod."""

POD_STATES: Final = ("Ready", "NotReady")
CONTAINER_STATES: Final = ("Created", "Running", "Exited")
UNKNOWN_STATE: Final = "Unknown"

NEVER: Final = "0001-01-01T00:00:00Z"
"""Placeholder for a time that is unknown or has not been reached."""

SIZE_DIGITS: Final = 4
NOT_MEASURED: Final = "-"
"""Shown in CPU % if the runtime took no new sample since the first measurement."""

_NS_PER_S: Final = 1_000_000_000


# A name with a tag may look like a short digest: cafe:1.
_DIGEST: Final = r"(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})"


@dataclass(frozen=True, slots=True)
class Known:
    """Data beside the objects of a list, and how to show it.

    Attributes:
        now: the current time, in seconds since 1970.
        image_names: the names of images, by image ID.
        ends: exit codes and reasons by container ID.
        pods: metadata of pods, by pod ID, for containers whose labels do not name their pod.
        addresses: the addresses of pods, by pod ID.
        nothing: what is shown for a container that has not ended.
    """

    now: float
    no_trunc: bool = False
    image_names: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    pods: Mapping[str, cri_pb2.PodSandboxMetadata] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    nothing: str = NONE

    def short(self, identifier: str) -> str:
        if self.no_trunc:
            return identifier
        return identifier.removeprefix(DIGEST_PREFIX)[:SHORT_ID_CHARS]

    def image(self, image: str) -> str:
        return self.image_names.get(image) or shown_image(image, no_trunc=self.no_trunc)

    def end(self, container: cri_pb2.Container) -> tuple[str, str]:
        """Return a container's exit code and reason."""
        return self.ends.get(container.id, (self.nothing, self.nothing))

    def of_pod(self, container: cri_pb2.Container, name: str) -> str:
        """Return the ``name``, ``namespace`` or ``uid`` of a container's pod."""
        pod = self.pods.get(container.pod_sandbox_id)
        return container.labels.get(POD_LABELS + name, getattr(pod, name, UNKNOWN))


def version_block(version: cri_pb2.VersionResponse) -> Block:
    return [
        ("Version", version.version),
        ("RuntimeName", version.runtime_name),
        ("RuntimeVersion", version.runtime_version),
        ("RuntimeApiVersion", version.runtime_api_version),
    ]


def image_rows(images: Iterable[cri_pb2.Image]) -> list[ImageRow]:
    """Return a row for each tag of each image, and one for each image without tags."""
    rows = []
    for image in images:
        repository, digest = _first_digest(image)
        rows += [
            ImageRow(image, name, tag, digest) for name, tag in _names_and_tags(image, repository)
        ]
    return rows


class ImageRow(NamedTuple):
    image: cri_pb2.Image
    name: str
    tag: str
    digest: str


IMAGES: Final = (
    Column("IMAGE", ".repoTags[0]", lambda row, _: row.name),
    Column("TAG", "", lambda row, _: row.tag),
    Column("DIGEST", ".repoDigests[0]", lambda row, known: known.short(row.digest), "digests"),
    Column("IMAGE ID", ".id", lambda row, known: known.short(row.image.id)),
    Column("SIZE", ".size", lambda row, _: format_size(row.image.size, 3)),
    Column("PINNED", ".pinned", lambda row, _: _is(row.image.pinned), "pinned"),
    Column("USER", ".username", lambda row, _: _user(row.image), "wide"),
)


def _is(value: bool) -> str:
    return "true" if value else "false"


def image_block(image: cri_pb2.Image) -> Block:
    # The message's text format, which omits zeros.
    uid = f"value:{image.uid.value}" if image.uid.value else ""
    return block_of(
        ("ID", image.id),
        *(("RepoTags", tag) for tag in image.repo_tags),
        *(("RepoDigests", digest) for digest in image.repo_digests),
        ("Size", str(image.size) if image.size else None),
        ("Uid", uid if image.HasField("uid") else None),
        ("Username", image.username or None),
        ("Pinned", "true" if image.pinned else None),
    )


PODS: Final = (
    Column("POD ID", ".id", lambda pod, known: known.short(pod.id)),
    Column("CREATED", ".createdAt", lambda pod, known: f"{age(pod.created_at, known.now)} ago"),
    Column("STATE", ".state", lambda pod, _: _state(POD_STATES, pod.state)),
    Column("NAME", ".metadata.name", lambda pod, _: pod.metadata.name),
    Column("NAMESPACE", ".metadata.namespace", lambda pod, _: pod.metadata.namespace),
    Column("ATTEMPT", ".metadata.attempt", lambda pod, _: str(pod.metadata.attempt)),
    Column("RUNTIME", ".runtimeHandler", lambda pod, _: pod.runtime_handler or DEFAULT_RUNTIME),
    Column("IP", "", lambda pod, known: known.addresses.get(pod.id) or NONE, "wide"),
    Column("UID", ".metadata.uid", lambda pod, _: pod.metadata.uid, "wide"),
)


PODS_ON_SCREEN: Final = reordered(
    PODS, "NAME", "STATE", "NAMESPACE", "CREATED", "ATTEMPT", "POD ID"
)
IMAGES_ON_SCREEN: Final = reordered(IMAGES, "IMAGE", "TAG", "SIZE")

WHOLE: Final = ("NAME", "STATE", "TAG")
"""Headings of columns that are not cut on a terminal."""


def pod_block(pod: cri_pb2.PodSandbox) -> Block:
    return block_of(
        ("ID", pod.id),
        ("Name", pod.metadata.name),
        ("UID", pod.metadata.uid),
        ("Namespace", pod.metadata.namespace),
        ("Attempt", str(pod.metadata.attempt) if pod.metadata.attempt else None),
        ("Status", _state(POD_STATES, pod.state)),
        ("Created", go_time(pod.created_at)),
        ("Labels", pod.labels or None),
        ("Annotations", pod.annotations or None),
        ("Runtime", pod.runtime_handler or DEFAULT_RUNTIME),
    )


def _pod_column(heading: str, name: str, when: str = "") -> Column:
    path = ".labels." + (POD_LABELS + name).replace(".", r"\.")
    return Column(heading, path, lambda container, known: known.of_pod(container, name), when)


CONTAINERS: Final = (
    Column("CONTAINER", ".id", lambda item, known: known.short(item.id)),
    Column("IMAGE", ".image.image", lambda item, known: known.image(item.image.image)),
    Column("CREATED", ".createdAt", lambda item, known: f"{age(item.created_at, known.now)} ago"),
    Column("STATE", ".state", lambda item, _: _state(CONTAINER_STATES, item.state)),
    Column("NAME", ".metadata.name", lambda item, _: item.metadata.name),
    Column("ATTEMPT", ".metadata.attempt", lambda item, _: str(item.metadata.attempt)),
    Column("POD ID", ".podSandboxId", lambda item, known: known.short(item.pod_sandbox_id)),
    _pod_column("POD", "name"),
    _pod_column("NAMESPACE", "namespace"),
    Column(
        "IMAGE ID",
        ".imageId",
        lambda item, known: known.short(item.image_id or item.image_ref),
        "wide",
    ),
    _pod_column("POD UID", "uid", "wide"),
    Column("EXIT", "", lambda item, known: known.end(item)[0], "ends"),
    Column("REASON", "", lambda item, known: known.end(item)[1], "ends"),
)


CONTAINERS_ON_SCREEN: Final = reordered(
    [
        column._replace(heading="RESTARTS") if column.heading == "ATTEMPT" else column
        for column in CONTAINERS
    ],
    "NAME", "STATE", "EXIT", "REASON", "RESTARTS", "POD", "NAMESPACE", "CREATED",
)  # fmt: skip


def container_block(container: cri_pb2.Container, known: Known) -> Block:
    return block_of(
        ("ID", container.id),
        ("PodID", container.pod_sandbox_id),
        ("Namespace", known.of_pod(container, "namespace")),
        ("Name", container.metadata.name),
        ("Attempt", str(container.metadata.attempt)),
        ("State", _state(CONTAINER_STATES, container.state)),
        ("Image", container.image.image),
        ("Created", f"{age(container.created_at, known.now)} ago"),
        ("Labels", container.labels or None),
        ("Annotations", container.annotations or None),
    )


def block_of(*fields: tuple[str, str | Mapping[str, str] | None]) -> Block:
    """Return the fields that are not None."""
    return [(label, value) for label, value in fields if value is not None]


def shown_image(image: str, *, no_trunc: bool = False) -> str:
    if no_trunc or not image.startswith("sha") or not re.fullmatch(_DIGEST, image):
        return image
    return image.partition(":")[2][:SHORT_ID_CHARS]


def runtime_config_table(config: cri_pb2.RuntimeConfigResponse) -> Table | None:
    if not config.HasField("linux"):
        return None
    driver = enum_name(config.linux, "cgroup_driver")
    return Table(("cgroup driver:", driver), (), min_width=RUNTIME_CONFIG_WIDTH)


def enum_name(message: Message, name: str) -> str:
    """Return the name of an enum field's value, or the number if it has no known name."""
    number: int = getattr(message, name)
    descriptor = message.DESCRIPTOR.fields_by_name[name].enum_type
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


def age(time_ns: int, now: float) -> str:
    """Return the age at ``now`` (seconds since 1970): ``5 minutes``, ``About an hour``."""
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


# Resource usage: runtimes report cumulative CPU time; tables show the difference of two samples


class StatsRow(NamedTuple):
    """A sample, its CPU share since the previous one, and its memory."""

    stats: Any
    cpu: str
    memory: str


CONTAINER_STATS: Final = (
    Column("CONTAINER", "", lambda row, _: row.stats.attributes.id[:SHORT_ID_CHARS]),
    Column("NAME", "", lambda row, _: row.stats.attributes.metadata.name),
    Column("CPU %", "", lambda row, _: row.cpu),
    Column("MEM", "", lambda row, _: row.memory),
    Column("DISK", "", lambda row, _: _size(row.stats.writable_layer.used_bytes.value)),
    Column("INODES", "", lambda row, _: str(row.stats.writable_layer.inodes_used.value)),
    Column("SWAP", "", lambda row, _: _size(row.stats.swap.swap_usage_bytes.value)),
)
POD_STATS: Final = (
    Column("POD", "", lambda row, _: row.stats.attributes.metadata.name),
    Column("POD ID", "", lambda row, _: row.stats.attributes.id[:SHORT_ID_CHARS]),
    Column("CPU %", "", lambda row, _: row.cpu),
    Column("MEM", "", lambda row, _: row.memory),
)


def _size(size_bytes: int) -> str:
    return format_size(size_bytes, SIZE_DIGITS)


def measured(
    before: Iterable[Any], after: Iterable[Any], *, show_all: bool = False
) -> Iterator[StatsRow]:
    """Yield a row for each object with two samples; with ``show_all``, also for idle ones."""
    earlier = {stats.attributes.id: stats for stats in before}
    for stats in after:
        usage = getattr(stats, "linux", stats)
        memory = usage.memory.working_set_bytes.value
        is_idle = not usage.cpu.usage_core_nano_seconds.value and not memory
        first = earlier.get(stats.attributes.id)
        if first is not None and (show_all or not is_idle):
            cpu = cpu_percent(getattr(first, "linux", first).cpu, usage.cpu)
            yield StatsRow(stats, cpu, _size(memory))


def cpu_percent(before: cri_pb2.CpuUsage, after: cri_pb2.CpuUsage) -> str:
    """Return the share of one core between two samples, in percent: 200.00 is two cores."""
    if not after.usage_core_nano_seconds.value:
        return "0.00"
    elapsed_ns = after.timestamp - before.timestamp
    if elapsed_ns <= 0:
        return NOT_MEASURED
    used_ns = after.usage_core_nano_seconds.value - before.usage_core_nano_seconds.value
    return f"{100 * used_ns / elapsed_ns:.2f}"
