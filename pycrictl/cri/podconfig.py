"""Pod sandbox configurations in JSON or YAML files (CRI ``PodSandboxConfig``)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format

from pycrictl._proto import cri_pb2
from pycrictl.errors import UsageError


def load_pod_config(path: str) -> cri_pb2.PodSandboxConfig:
    """Reads a pod's configuration; field names may be the proto's or camelCase.

    A missing ``metadata.uid`` is filled with a random UUID.

    Raises:
        UsageError: the file cannot be read, or is no valid configuration; names the file and field.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise UsageError(f'cannot read pod config "{path}": {reason}') from None
    try:
        document = _parse(text)
    except (ValueError, RecursionError, yaml.YAMLError) as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(exc, "problem", None) or str(exc)
        raise UsageError(f'pod config "{path}" is no valid YAML{where}: {problem}') from None
    try:
        config = json_format.ParseDict(document, cri_pb2.PodSandboxConfig())
    except (json_format.ParseError, AttributeError, TypeError, ValueError) as exc:
        problem = " ".join(str(exc).split())
        raise UsageError(f'pod config "{path}" is invalid: {problem}') from None
    if not config.metadata.name or not config.metadata.namespace:
        raise UsageError(f'pod config "{path}" needs metadata.name and metadata.namespace')
    config.metadata.uid = config.metadata.uid or str(uuid.uuid4())
    return config


def _parse(text: str) -> dict[str, Any]:
    """YAML without aliases: nothing in a pod needs them, and they can unfold to any size."""
    try:
        document = json.loads(text)
    except ValueError:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("aliases are not supported") from None
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(document, dict):
        raise ValueError("the top level must be a mapping")
    return document
