"""The agent's serving certificate: of files that may be renewed, else made at each start.

One that is made is signed by the agents' own CA (``authority.py``), else by itself. The API server
verifies neither (``insecureSkipTLSVerify``), as for metrics-server.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl import ownprogram
from pycrictl.agent.trust.frontproxy import Trust, certificates
from pycrictl.errors import ConfigError, PycrictlError, UsageError
from pycrictl.units import escape, quote

MAX_FILE_BYTES: Final = 1024 * 1024
ISSUING_S: Final = 60.0
"""How long a process may take that makes a certificate: nodes are busy when they start."""

_NAME: Final = "pycrictl agents"


class Pair(NamedTuple):
    """A certificate and its key, both as PEM; ``expiry_s`` is wall time."""

    certificate: bytes
    key: bytes
    expiry_s: float = 0.0


def authority() -> Pair:
    return _issued([_NAME], None, is_authority=True)


def serving(names: Sequence[str], authority: Pair | None = None) -> Pair:
    """Return a certificate for these names and addresses; self-signed without an authority."""
    return _issued(names, authority, is_authority=False)


def _issued(names: Sequence[str], authority: Pair | None, *, is_authority: bool) -> Pair:
    signer = None if authority is None else [one.decode("latin-1") for one in authority[:2]]
    found = _apart("issue", names, signer, is_authority)
    if found is None:
        raise ConfigError("the agents' own CA cannot be used")
    certificate, key, expiry_s = found
    return Pair(certificate.encode(), key.encode(), expiry_s)


def _apart(name: str, *arguments: Any) -> Any:
    try:
        done = subprocess.run(
            ownprogram.command("pycrictl.agent.trust.issuing:main"),
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


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Have a context serve with a certificate; its key never touches a disk."""
    with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
        # Without a password function, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")


def read(certificate_file: str, key_file: str) -> Pair:
    """Return the pair that the options ``--tls-cert`` and ``--tls-key`` name."""
    pair = Pair(content(certificate_file, "tls-cert"), content(key_file, "tls-key"))
    names = f"--tls-cert {quote(certificate_file, 4096)}", f"--tls-key {quote(key_file, 4096)}"
    fault, expiry_s = _apart("check", *(one.decode("latin-1") for one in pair[:2]), *names)
    if fault:
        raise ConfigError(fault)
    try:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        reason = str(getattr(exc, "reason", None) or exc).lower().replace("_", " ")
        raise ConfigError(f"cannot serve with {' and '.join(names)}: {reason}") from None
    return pair._replace(expiry_s=expiry_s)


def content(path: str, option: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read --{option} {quote(path, 4096)}: {reason}") from None


class Certificates:
    """The serving certificate: of files that may be renewed, else self-signed for ``names``."""

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
        """Serve with a certificate of an authority; a ConfigError if that is not valid."""
        self._pair = serving(self._names, authority)

    def has_changed(self) -> bool:
        before, self._stamp = self._stamp, self._stamped()
        return self._stamp != before

    def renew(self) -> None:
        """Read the files again; if they cannot be used, what was read before stays in use."""
        self._pair = read(*self._files)

    def _stamped(self) -> tuple[int, ...]:
        try:
            found = [Path(one).stat() for one in self._files if one]
        except OSError:
            return ()
        # The clock of a file system has steps of milliseconds, in which a file may still grow.
        return tuple(n for one in found for n in (one.st_ino, one.st_size, one.st_mtime_ns))

    def context(self, trust: Trust | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # A session that is resumed would bring back a certificate that was verified earlier.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        load(context, self._pair)
        if trust is not None and trust.authorities:
            context.load_verify_locations(cadata=trust.authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def authorities(path: str, option: str) -> str:
    found = certificates(content(path, option).decode("utf-8", "replace"))
    if not found:
        raise ConfigError(f"--{option} {quote(path, 4096)} is not a file of PEM certificates")
    return found


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    with os.fdopen(os.memfd_create("serving"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
