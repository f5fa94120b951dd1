"""What answers must hold; one without it is an error and is not shown."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.errors import RemoteProtocolError

if TYPE_CHECKING:
    from google.protobuf.message import Message

# The same as crictl's, so that both show the same answers.
_REQUIRED: Final = {
    cri_pb2.VersionResponse: ("version", "runtime_name", "runtime_version", "runtime_api_version"),
    cri_pb2.PodSandboxStatus: (
        *("id", "metadata.name", "metadata.namespace", "metadata.uid", "created_at"),
    ),
    cri_pb2.ContainerStatus: ("id", "metadata.name", "created_at", "image.image", "image_ref"),
    cri_pb2.Image: ("id", "size"),
}

_CONDITIONS: Final = 2
"""The API wants RuntimeReady and NetworkReady."""


def check(message: Message, what: str) -> None:
    """Refuse a ``VersionResponse``, a status of a pod or container, or an ``Image`` with gaps.

    Args:
        message: what the runtime answered.
        what: what was asked, such as ``image "x"``.

    Raises:
        RemoteProtocolError: names the fields that are empty.
    """
    missing = [path for path in _REQUIRED[type(message)] if not attrgetter(path)(message)]
    if missing:
        raise RemoteProtocolError(f"{what}: the runtime answered without {', '.join(missing)}")


def check_conditions(status: cri_pb2.RuntimeStatus, what: str) -> None:
    """Refuse a runtime's status with fewer conditions than the API wants.

    Raises:
        RemoteProtocolError: there are fewer than two.
    """
    if len(status.conditions) < _CONDITIONS:
        raise RemoteProtocolError(
            f"{what}: the runtime answered with fewer than {_CONDITIONS} conditions"
        )
