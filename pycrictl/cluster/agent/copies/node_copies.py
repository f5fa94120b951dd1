"""The copies of this node as the API offers them: requests, documents, refusals and log lines.

A copy ends with its agent; its client then starts it again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConnectError, NotFound, PycrictlError, UsageError
from pycrictl.base.foreign import cleaned, count, flag, mapping, parse, strict, text
from pycrictl.base.servicelog import Whole
from pycrictl.base.units import format_moment, quote
from pycrictl.cluster.agent.api.names import COPIES, COPY_KIND, GROUP_VERSION, Refusal
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import refusal_codes
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copies, Copy, GivenUp
from pycrictl.copy.service.life import Event, State
from pycrictl.copy.service.slots import Slots
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.messages import ResumableProtocol
from pycrictl.kube.pods import Pod

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

log = logging.getLogger("pycrictl.cluster.agent")

RETRY_S: Final = 10
"""How long a client should wait after a quota was reached."""

NAME: Final = re.compile(r"[0-9a-f]{32}")
"""The names of copies: 128 random bits, which cannot be guessed."""

MAX_BODY_BYTES: Final = 64 * 1024

_PHASES: Final = {
    State.MEASURING: "Measuring",
    State.WAITING: "Transferring",
    State.COPYING: "Transferring",
    State.DONE: "Succeeded",
}
"""The phases of copies in the API; that of other states is Failed at the end, else Committing."""

T = TypeVar("T")


class CopyOwner(NamedTuple):
    """The owner of a copy, as authenticated by the API server."""

    name: str
    uid: str = ""


class CopySpec(NamedTuple):
    """The copy that is requested.

    Attributes:
        direction: ``To`` or ``From`` the container; ``Unknown`` if the request cannot be read.
        container: empty for the pod's default.
        size_bytes, crc32: of the archive; known beforehand only for a copy into a container.
    """

    direction: str = "Unknown"
    path: bytes = b""
    container: str = ""
    size_bytes: int = 0
    crc32: int = 0
    rules: Rules = Rules()

    @property
    def is_to(self) -> bool:
        return self.direction == "To"


def parse_request(body: bytes) -> tuple[str, CopySpec]:
    """Return the name in a request that begins a copy, empty if absent, and its spec.

    Raises:
        Refused: it is not valid.
    """
    if len(body) > MAX_BODY_BYTES:
        raise Refused(413, "the object is too large")
    try:
        document = parse(body)
    except ValueError:
        raise Refused(400, "the object is not JSON") from None
    try:
        name = _value(mapping(document).get("metadata", {}), "name", text, "")
        if name and not NAME.fullmatch(name):
            raise UsageError("metadata.name must be 32 hexadecimal digits, made at random")
        return name, _spec(_value(document, "spec", mapping))
    except UsageError as exc:
        raise Refused(422, exc.message) from None


def _spec(spec: dict[str, Any]) -> CopySpec:
    direction = text(spec.get("direction"))
    if direction not in ("To", "From"):
        raise UsageError('spec.direction must be "To" or "From"')
    is_to = direction == "To"
    try:
        path = os.fsencode(_value(spec, "path", text))
    except UnicodeEncodeError:
        raise UsageError("spec.path has a character that is not valid in a path") from None
    check_container_path(path)
    options: dict[str, Any] = _value(spec, "options", mapping, {})
    return CopySpec(
        direction,
        path,
        _value(spec, "container", text, ""),
        _value(spec, "size", count) if is_to else 0,
        _value(spec, "checksum", lambda value: count(value, (1 << 32) - 1)) if is_to else 0,
        Rules(
            archive=_value(options, "archive", flag, default=False),
            follow=_value(options, "followLinks", flag, default=False),
        ),
    )


def _value(
    document: object, key: str, read: Callable[[object], T | None], default: T | None = None
) -> T:
    """Return a value of an object, or the default; without one it is required."""
    try:
        value = strict(mapping(document).get(key), read)
    except ValueError:
        raise UsageError(f"{key} has a value of the wrong type") from None
    if value is None:
        value = default
    if value is None:
        raise UsageError(f"{key} is missing")
    return value


@dataclass(eq=False, kw_only=True)
class NodeCopy(Copy):
    """A copy, and its request.

    Attributes:
        pod: as it was when the copy began; its UID distinguishes it from another of that name.
        created: when it was requested (RFC 3339).
    """

    user: CopyOwner
    pod: Pod
    spec: CopySpec
    created: str

    @property
    def phase(self) -> str:
        other = "Failed" if self.state.is_over else "Committing"
        return _PHASES.get(self.state, other)

    @property
    def document(self) -> dict[str, Any]:
        """The object of the API."""
        spec, phase = self.spec, self.phase
        status: dict[str, Any] = {"phase": phase, "offset": self.offset}
        if self.state is not State.MEASURING:
            status |= {"size": self.size_bytes, "checksum": self.transfer.crc32}
        elif self.expected_bytes:
            status["expectedSize"] = self.expected_bytes
        if isinstance(self.error, Refused):
            status |= {"message": self.error.message, "code": self.error.code}
        if phase == "Succeeded" or (phase == "Transferring" and not self.is_to):
            status["outcome"] = cleaned(json.loads(self.success()))
        return {
            "apiVersion": GROUP_VERSION,
            "kind": COPY_KIND,
            "metadata": {
                "name": self.name,
                "namespace": self.pod.namespace,
                "creationTimestamp": self.created,
            },
            "spec": {
                "direction": spec.direction,
                "container": spec.container,
                "path": os.fsdecode(spec.path),
                **({"size": spec.size_bytes, "checksum": spec.crc32} if self.is_to else {}),
                "options": {"archive": self.rules.archive, "followLinks": self.rules.follow},
            },
            "status": status,
        }


class CopyEnded(NamedTuple):
    """What log and metrics get of a copy that is over or was refused.

    Attributes:
        pod: NAMESPACE/NAME.
        end: a state in which a copy is over (``copy.service.life``).
        size_bytes: the archive's size, as announced or made.
        moved_bytes: how much of that was delivered.
        error: why it failed or was refused.
    """

    owner: CopyOwner
    pod: str
    spec: CopySpec
    end: State
    size_bytes: int = 0
    moved_bytes: int = 0
    error: str = ""

    @property
    def fields(self) -> dict[str, object]:
        """The fields of its log line; the path is not cut, so its end cannot be hidden."""
        return {
            "user": self.owner.name,
            "uid": self.owner.uid,
            "pod": self.pod,
            "container": self.spec.container,
            "direction": self.spec.direction.lower(),
            "path": Whole(os.fsdecode(self.spec.path)),
            "size_bytes": self.size_bytes,
            "moved_bytes": self.moved_bytes,
            "end": self.end.value,
            "error": self.error if self.end in (State.FAILED, State.REFUSED) else "",
        }


Audit = Callable[[CopyEnded], None]
"""Called once for each copy that is over or was refused."""


class Refused(Refusal):
    """The refusal of a request about a copy; the handler adds the pod's name."""

    def __init__(self, code: int, message: str) -> None:
        retry_after_s = RETRY_S if code == 429 else 0
        super().__init__(code, message, kind=COPIES, retry_after_s=retry_after_s)


def refused(exc: Exception) -> Refused:
    """Turn any exception into an HTTP error: even a bug ends only its own request."""
    if isinstance(exc, Refused):
        return exc
    if isinstance(exc, GivenUp):
        return Refused(503 if exc.event is Event.STOPPED else 410, exc.message)
    _, code = refusal_codes(exc)
    if isinstance(exc, PycrictlError):
        # Hints for a user on the node are of no use to a client in the cluster.
        hint = "" if isinstance(exc, ConnectError) else exc.hint
        return Refused(code, f"{exc.message} ({hint})" if hint else exc.message)
    log.error("a copy failed", exc_info=exc)
    return Refused(code, f"the agent failed: {type(exc).__name__}: {exc}")


POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"

LIFETIME_S: Final = 15 * 60.0
"""A copy without any activity of its client for this long is removed."""

PATIENCE_S: Final = 20.0
"""How long a request waits for its result; the API server gives a request 60 s."""


class NodeCopies(Copies[NodeCopy]):
    """The copies of this node.

    Args:
        folder: where archives of copies out of containers are kept.
        open_client: connects to the runtime.
        audit: called with the end of each copy, refused ones included.
    """

    def __init__(
        self,
        folder: str,
        open_client: Callable[[], AbstractContextManager[CriClient]],
        slots: Slots,
        audit: Audit,
        *,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        super().__init__(slots, lifetime_s=lifetime_s, keeps_ended=True)
        self._folder = folder
        self._open_client = open_client
        self._audit = audit

    def locate(self, container_id: str) -> on_node.FirstProcess:
        with self._open_client() as client:
            return on_node.locate_here(client, container_id)

    def explain(self, exc: Exception) -> Refused:
        why = refused(exc)
        # Trying again cannot help a copy that has begun.
        return Refused(422, why.message) if why.code == 429 else why

    def last_word(self, copy: NodeCopy, error: Exception | None) -> bytes:
        """Return the refusal; the client requests the outcome of a success."""
        return json.dumps(error.document).encode() if isinstance(error, Refused) else b""

    def ended(self, copy: NodeCopy) -> None:
        sizes, error = (copy.size_bytes, copy.offset), getattr(copy.error, "message", "")
        self._audit(CopyEnded(copy.user, _whole(copy.pod), copy.spec, copy.state, *sizes, error))

    async def create(self, owner: CopyOwner, pod: Pod, body: bytes) -> NodeCopy:
        """Begin the copy that a request asks for.

        A copy out of a container is returned once its archive has begun; if that takes long, it is
        returned earlier. It is in the phase ``Measuring`` until its archive is complete.
        """
        spec, copy = CopySpec(container=pod.container), None
        try:
            name, spec = parse_request(body)
            spec = spec._replace(container=spec.container or pod.container)
            container = await asyncio.to_thread(self._find_container, pod, spec.container)
            protocol = ResumableProtocol(is_client=False, is_sender=not spec.is_to)
            transfer: Upload | Download = Download(protocol, self._folder)
            if spec.is_to:
                transfer = Upload(protocol, spec.size_bytes, spec.crc32)
            copy = NodeCopy(
                container.id,
                spec.path,
                transfer,
                container.pod_sandbox_id,
                rules=spec.rules,
                user=owner,
                pod=pod,
                spec=spec,
                created=format_moment(time.time()),
            )
            copy.name = name or copy.name
            await self.begin(copy, PATIENCE_S)
        except Exception as exc:
            why = refused(exc)
            if copy is None or copy.making is None:  # it has not even begun
                sizes = spec.size_bytes, 0
                self._audit(CopyEnded(owner, _whole(pod), spec, State.REFUSED, *sizes, why.message))
            raise why from None
        return copy

    def find(self, name: str, owner: CopyOwner, pod: Pod) -> NodeCopy:
        """Return a copy, and count this as activity; another user's copy is refused as unknown."""
        copy = self.current.get(name)
        key = owner, _whole(pod), pod.uid
        if copy is None or (copy.user, _whole(copy.pod), copy.pod.uid) != key:
            raise Refused(
                404,
                f"copy {quote(name[:32])} is not known on the node of"
                f" pod {quote(_whole(pod))}: the agent was restarted, there was no request"
                " about it for 15 minutes, or the pod was replaced; start the copy again",
            )
        copy.heard_s = self.clock()
        return copy

    def check_moving(self, copy: NodeCopy) -> None:
        """Require that a copy can continue to transfer bytes."""
        if isinstance(copy.error, Refused):
            raise copy.error
        if copy.state not in (State.MEASURING, State.WAITING, State.COPYING):
            raise Refused(409, f"the copy is {copy.state}: no bytes are wanted")

    async def finish(self, copy: NodeCopy) -> None:
        """Move an archive that has arrived into place, or end a copy that the client has whole.

        If that takes long, the copy is in the phase ``Committing`` afterwards, and a second call
        has the result.
        """
        if copy.state is State.MEASURING:
            raise Refused(409, "the archive is still being made")
        is_open = copy.state in (State.WAITING, State.COPYING)
        if copy.is_to and is_open and copy.offset != copy.size_bytes:
            raise Refused(409, f"only {copy.offset} of {copy.size_bytes} bytes have arrived")
        if not copy.state.is_over:
            await self.commit(copy, PATIENCE_S)

    def _find_container(self, pod: Pod, name: str) -> cri_pb2.Container:
        """Return the running container of a pod; called in a thread."""
        labels = {POD_UID: pod.uid, CONTAINER_NAME: name}
        wanted = cri_pb2.ContainerFilter(label_selector=labels)
        with self._open_client() as client:
            request = cri_pb2.ListContainersRequest(filter=wanted)
            containers = client.call("ListContainers", request).containers
        running = [one for one in containers if one.state == cri_pb2.CONTAINER_RUNNING]
        if running:
            latest: cri_pb2.Container = max(running, key=lambda container: container.created_at)
            return latest
        shown = quote(_whole(pod))
        names = [image.container for image in pod.images if not image.is_volume]
        what = f"container {quote(name)} of pod {shown} is not running"
        if names and name not in names:
            what = f"pod {shown} has no container {quote(name)}, only {', '.join(names)}"
        raise NotFound(what, code="NotFound")


def _whole(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
