"""A manifest by ``skopeo inspect --raw``, which reaches registries as CRI-O and podman do.

Credentials go into a file in memory without a name, which ends with the two processes, however they
end. Nothing of them is in the arguments or on a disk.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from pycrictl.progress.reference import canonical, parse

if TYPE_CHECKING:
    from pycrictl.progress.registry.client import Credentials, Question

_NOBODY: Final = "00000000-0000-0000-0000-000000000000"
"""The user beside an identity token, which counts only with one."""


def program() -> str:
    """Return the path of skopeo; empty if it is not installed."""
    return shutil.which("skopeo") or ""


def fetch(skopeo: str, question: Question, reference: str, *, timeout_s: float) -> bytes | None:
    """Return the manifest or index that a reference names, as the registry has it.

    Returns:
        None if skopeo fails or takes longer than ``timeout_s``.
    """
    command = [skopeo]
    if registries := question.environ.get("CONTAINERS_REGISTRIES_CONF"):
        command += ["--registries-conf", registries]
    command += ["inspect", "--raw"]
    if not question.verifies_tls:
        command.append("--tls-verify=false")
    auth = None
    if question.credentials is not None:
        auth = _auth_file(reference, question.credentials)
        command += ["--authfile", f"/proc/self/fd/{auth}"]
    try:
        done = subprocess.run(
            [*command, f"docker://{canonical(reference)}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=() if auth is None else (auth,),
            env={**os.environ, **question.environ},
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        if auth is not None:
            os.close(auth)
    return done.stdout if done.returncode == 0 else None


def _auth_file(reference: str, credentials: Credentials) -> int:
    """Return a descriptor of an auth file (containers-auth.json(5)) for one registry."""
    entry = {}
    if credentials.username:
        pair = f"{credentials.username}:{credentials.password}".encode()
        entry["auth"] = base64.b64encode(pair).decode()
    if credentials.identity_token:
        entry["identitytoken"] = credentials.identity_token
        entry.setdefault("auth", base64.b64encode(f"{_NOBODY}:".encode()).decode())
    file = os.memfd_create("auth.json", os.MFD_CLOEXEC)
    os.write(file, json.dumps({"auths": {parse(reference).host: entry}}).encode())
    return file
