"""What the API is called: group, version and resources. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

Document: TypeAlias = dict[str, Any]
GROUP: Final = "progress.pycrictl.dev"
VERSION: Final = "v1alpha1"
GROUP_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ImagePull"
RESOURCE: Final = "imagepulls"
SINGULAR: Final = "imagepull"
SHORT: Final = "ipull"
SUBRESOURCE: Final = "imagepullprogress"
COPY_KIND: Final = "ContainerCopy"
COPIES: Final = "containercopies"
META: Final = "meta.k8s.io"

AUDIENCE: Final = GROUP
"""The audience of the tokens that agents use to authenticate to each other."""

SERVICE: Final = "pycrictl-agent"
"""The Service whose endpoints are the agents."""

PORT: Final = 10281

_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
NAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"
"""As a regular expression, an RFC 1123 subdomain."""

_NAME: Final = re.compile(NAME)
_MAX_NAME_CHARS: Final = 253


def is_name(text: str) -> bool:
    return len(text) <= _MAX_NAME_CHARS and _NAME.fullmatch(text) is not None
