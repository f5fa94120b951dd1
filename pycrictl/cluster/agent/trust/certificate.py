"""The agent's serving certificate: from files that may be renewed, else made at each start.

A certificate made here is signed by the agents' own CA, with which they verify each other, or else
self-signed. The API server verifies neither (``insecureSkipTLSVerify``), as for metrics-server. The
first agent makes the CA, and keeps it in a Secret that the manifests create empty. It is readable
for agents, and for users who may read the Secrets of their namespace.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl.base import ownprogram
from pycrictl.base.errors import (
    ConfigError,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    UsageError,
    reason_of,
)
from pycrictl.base.tls import load_pair
from pycrictl.base.units import escape, quote
from pycrictl.cluster.agent.api.names import Document
from pycrictl.cluster.agent.asyncapi import AsyncApiClient
from pycrictl.cluster.agent.trust.access import ServerContext, Trust, checked
from pycrictl.streams.loop import in_thread

MAX_FILE_BYTES: Final = 1024 * 1024
ISSUING_S: Final = 60.0
"""How long the process that makes a certificate may take: nodes are busy when they start."""

SECRET: Final = "pycrictl-agent-ca"
CERTIFICATE: Final = "ca.crt"
KEY: Final = "ca.key"
TRIES: Final = 5

_NAME: Final = "pycrictl agents"


class Pair(NamedTuple):
    """A certificate and its key, both as PEM; ``expiry_s`` is wall time."""

    certificate: bytes
    key: bytes
    expiry_s: float = 0.0


def authority() -> Pair:
    return serving([_NAME], is_authority=True)


def serving(
    names: Sequence[str], authority: Pair | None = None, *, is_authority: bool = False
) -> Pair:
    """Return a certificate for these names and addresses; self-signed without an authority."""
    signer = None if authority is None else [pem.decode("latin-1") for pem in authority[:2]]
    made = _apart("issue", names, signer, is_authority)
    if made is None:
        raise ConfigError("the agents' own CA cannot be used")
    certificate, key, expiry_s = made
    return Pair(certificate.encode(), key.encode(), expiry_s)


def _apart(name: str, *arguments: Any) -> Any:
    try:
        done = subprocess.run(
            ownprogram.command("pycrictl.cluster.agent.trust.issuing:main"),
            input=json.dumps([name, *arguments]).encode(),
            capture_output=True,
            timeout=ISSUING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise PycrictlError(f"cannot make a certificate: {escape(str(exc))}") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise PycrictlError(f"cannot make a certificate: {escape(last)}")
    return json.loads(done.stdout)


def read(certificate_file: str, key_file: str) -> Pair:
    """Return the pair that the options ``--tls-cert`` and ``--tls-key`` name."""
    pair = Pair(content(certificate_file, "tls-cert"), content(key_file, "tls-key"))
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair.certificate, pair.key)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        names = f"--tls-cert {quote(certificate_file, 4096)} and --tls-key {quote(key_file, 4096)}"
        raise ConfigError(f"{names} are not a PEM certificate and its unencrypted key") from None
    return pair._replace(expiry_s=_apart("expiry_s", pair.certificate.decode("latin-1")))


def content(path: str, option: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read --{option} {quote(path, 4096)}: {reason}") from None


class Certificates:
    """The serving certificate: from files that may be renewed, else self-signed for ``names``."""

    def __init__(self, certificate_file: str, key_file: str, names: list[str]) -> None:
        if bool(certificate_file) != bool(key_file):
            raise UsageError("--tls-cert and --tls-key go together")
        self._files = certificate_file, key_file
        self._names = names
        self._stamp = self._stamped()
        self._pair = read(*self._files) if certificate_file else serving(names)

    @property
    def expiry_s(self) -> float:
        return self._pair.expiry_s

    def sign(self, authority: Pair) -> None:
        """Use a certificate signed by an authority; raise ConfigError if that is not valid."""
        self._pair = serving(self._names, authority)

    def has_changed(self) -> bool:
        before, self._stamp = self._stamp, self._stamped()
        return self._stamp != before

    def renew(self) -> None:
        """Read the files again; if they cannot be used, the previous pair stays in use."""
        self._pair = read(*self._files)

    def _stamped(self) -> tuple[int, ...]:
        try:
            stats = [Path(path).stat() for path in self._files if path]
        except OSError:
            return ()
        # File times have steps of milliseconds, within which a file may still grow.
        return tuple(n for stat in stats for n in (stat.st_ino, stat.st_size, stat.st_mtime_ns))

    def context(self, trust: Trust | None) -> ServerContext:
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # A resumed session would bring back a certificate that was verified earlier.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        load_pair(context, self._pair.certificate, self._pair.key)
        if trust is not None and trust.proxy_ca:
            context.proxy_ca = trust.proxy_ca
            context.load_verify_locations(cadata=trust.proxy_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def authorities(path: str, option: str) -> str:
    """Return the certificates of a file; empty without a path."""
    if not path:
        return ""
    pem = checked(content(path, option).decode("utf-8", "replace"))
    if not pem:
        raise ConfigError(f"--{option} {quote(path, 4096)} is not a file of PEM certificates")
    return pem


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
        if (known := _parsed(secret)) is not None:
            return known
        made = await in_thread(authority)
        pair = {CERTIFICATE: made.certificate, KEY: made.key}
        data = {key: base64.b64encode(content).decode() for key, content in pair.items()}
        try:
            # It has the version that was read: of several agents at once, only one succeeds.
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
        pem, key = (base64.b64decode(data[name], validate=True) for name in (CERTIFICATE, KEY))
    except (KeyError, TypeError, ValueError):
        raise RemoteProtocolError(f"the Secret {SECRET} has no authority") from None
    return Pair(pem, key)
