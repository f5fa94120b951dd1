"""Pod and container configurations (JSON or YAML), as protobuf's JSON form, and credentials.

A file is a CRI ``PodSandboxConfig`` or ``ContainerConfig``. Keys are the API's names or their
camelCase; enums are names or numbers; integers of 64 bits are exact, as numbers or as text; a key
with the value null counts as absent. A key that the API does not define is an error: a runtime
would silently ignore it.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base import yamldata
from pycrictl.base.config import read_text
from pycrictl.base.errors import ConfigError, UsageError, reason_of
from pycrictl.base.units import escape, quote_path

M = TypeVar("M", bound=Message)

_FIELD: Final = r"Failed to parse (\S+) field: "


def load_pod(path: str, warn: Callable[[str], None]) -> cri_pb2.PodSandboxConfig:
    """Read a pod's configuration; a missing ``metadata.uid`` becomes a random UUID."""
    required = ("metadata.name", "metadata.namespace")
    config = _load(path, "pod config", cri_pb2.PodSandboxConfig(), required)
    config.metadata.uid = config.metadata.uid or str(uuid.uuid4())
    if config.HasField("linux") and not config.linux.cgroup_parent:
        file = f"pod config {quote_path(path)}"
        why = "the pod gets no cgroup of its own; 'pycrictl runtime-config' shows the cgroup driver"
        warn(f"{file} sets no linux.cgroup_parent: {why}")
    return config


def load_container(path: str) -> cri_pb2.ContainerConfig:
    """Read a container's configuration, and fill ``image.user_specified_image``."""
    required = ("metadata.name", "image.image")
    config = _load(path, "container config", cri_pb2.ContainerConfig(), required)
    if not config.image.user_specified_image:
        config.image.user_specified_image = config.image.image
    return config


def _load(path: str, kind: str, message: M, required: tuple[str, ...]) -> M:
    if not path:  # it would mean the working directory
        raise UsageError(f"the name of the {kind} is empty", hint="is a script's variable not set?")
    file = f"{kind} {quote_path(path)}"
    try:
        document = yamldata.parse(read_text(path))
    except ConfigError as error:
        raise UsageError(f"{file}: {error.message}") from None
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise UsageError(f"cannot read {file}: {reason_of(error)}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{file}: it must be a mapping of keys to values")
    _fill(message, _in_json_form(document), file)
    for name in required:
        value: Any = message
        for key in name.split("."):
            value = getattr(value, key)
        if not value:
            raise UsageError(f"{file}: {name} is missing or empty")
    return message


def _fill(message: Message, document: dict[str, Any], file: str) -> None:
    """Fill a message; an error names the key by its path and says what is wrong with it."""
    from google.protobuf import json_format  # noqa: PLC0415 - only for these files

    try:
        json_format.ParseDict(document, message)
    except (json_format.ParseError, TypeError) as error:
        said, _, known = str(error).partition("\n Available Fields(except extensions): ")
        where = ".".join(re.findall(_FIELD, said))
        problem = re.sub(rf"{_FIELD}| at {message.DESCRIPTOR.name}\S*", "", said).rstrip(".")
        keys = ", ".join(re.findall(r"'(\w+)'", known))
        raise UsageError(
            f"{file}: {escape(f'{where}: ' if where else '')}{escape(problem)}",
            hint=f"its keys are {keys}" if keys else None,
        ) from None


def _in_json_form(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document in protobuf's JSON form, which differs for signals and bytes.

    Signals have a prefix in the generated code. The values of environment variables are bytes in
    the API and plain text in files.
    """
    document = _without_nulls(document)
    for key in ("stop_signal", "stopSignal"):
        if (name := f"SIGNAL_{document.get(key)}") in cri_pb2.Signal.keys():
            document[key] = name
    for variable in document.get("envs", ()) if isinstance(document.get("envs"), list) else ():
        if isinstance(variable, dict) and isinstance(variable.get("value"), str):
            variable["value"] = base64.b64encode(variable["value"].encode()).decode()
    return document


def _without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in document.items()
        if value is not None
    }


def auth_config(
    *, creds: str = "", auth: str = "", username: str = "", password: str = ""
) -> cri_pb2.AuthConfig | None:
    """Make the credentials of a pull; None if none were given.

    ``creds`` is ``USER[:PASSWORD]``, ``auth`` the Base64 of the same, passed to the
    runtime undecoded; ``username`` overrides both. No error message contains a secret.
    """
    if username:
        return cri_pb2.AuthConfig(username=username, password=password)
    if creds and auth:
        raise UsageError("--creds and --auth cannot be combined")
    if auth:
        return cri_pb2.AuthConfig(auth=auth)
    if creds:
        user, _, secret = creds.partition(":")
        if not user:
            raise UsageError("--creds needs a user name before the colon")
        return cri_pb2.AuthConfig(username=user, password=secret)
    return None
