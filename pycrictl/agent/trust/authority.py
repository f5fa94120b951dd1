"""The agents' own CA, by which they verify each other; the first agent makes it.

It is kept in a Secret that the manifests create empty. Agents may read it, and users who may read
the Secrets of their namespace.
"""

from __future__ import annotations

import base64
from typing import Final

from pycrictl.agent.api.names import Document
from pycrictl.agent.asyncapi import AsyncApiClient
from pycrictl.agent.trust import certificate
from pycrictl.agent.trust.certificate import Pair
from pycrictl.errors import NotFound, RemoteProtocolError, RuntimeFault
from pycrictl.streaming.loop import in_thread

SECRET: Final = "pycrictl-agent-ca"
CERTIFICATE: Final = "ca.crt"
KEY: Final = "ca.key"

TRIES: Final = 5


async def shared(api: AsyncApiClient, namespace: str) -> Pair | None:
    """Return the authority of the agents; None if there is no Secret for it."""
    path = f"/api/v1/namespaces/{namespace}/secrets/{SECRET}"
    for _ in range(TRIES):
        try:
            secret = await api.get(path)
        except NotFound:
            return None  # it was removed on purpose; a missing right is another error
        if not isinstance(secret, dict):
            break
        if (found := _parsed(secret)) is not None:
            return found
        made = await in_thread(certificate.authority)
        data = {CERTIFICATE: _text(made.certificate), KEY: _text(made.key)}
        try:
            # With the version that was read: of several agents at once, one succeeds.
            await api.put(path, {**secret, "data": data})
        except RuntimeFault as exc:
            if exc.code != "409":
                raise
    raise RemoteProtocolError(f"the Secret {SECRET} has no authority")


def _parsed(secret: Document) -> Pair | None:
    """Return the authority in a Secret; None if it is empty."""
    data = secret.get("data") or {}
    if not data:
        return None
    try:
        pem, key = (base64.b64decode(data[one], validate=True) for one in (CERTIFICATE, KEY))
    except (KeyError, TypeError, ValueError):
        raise RemoteProtocolError(f"the Secret {SECRET} has no authority") from None
    return Pair(pem, key)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
