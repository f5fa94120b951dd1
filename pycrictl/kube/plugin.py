"""A credential printed by a program: ``exec`` of a kubeconfig's user (client-go's plugins).

Nodes in clouds have such kubeconfigs: the kubelet authenticates with the machine's own identity.
The program is the kubelet's, named in a file owned by root, and is run as the kubelet runs it:
without a terminal, with ``KUBERNETES_EXEC_INFO`` (client.authentication.k8s.io/v1). Its output is
kept in memory; its standard error is not shown, as it may contain anything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import mapping, mappings, parsed, text, texts
from pycrictl.base.units import format_duration, quote

MAX_ARGUMENT_CHARS: Final = 128 * 1024
"""The limit of execve(2) for one argument."""


class Printed(NamedTuple):
    """The printed credential: a token, or a client certificate with its key, in PEM."""

    token: str = ""
    certificate: str = ""
    key: str = ""


def ask_plugin(plugin: dict[str, Any], folder: Path, timeout_s: float) -> Printed:
    """Run the program in ``exec`` of a kubeconfig's user, and return its credential.

    ``folder`` is the kubeconfig's. Processes that the program leaves behind are killed, as is the
    program itself after ``timeout_s``.
    """
    command = text(plugin.get("command"))
    if not command:
        raise ConfigError("the kubeconfig's exec names no command")
    name = quote(command, 4096)
    if "/" in command:
        command = str(folder / command)
    words = texts(plugin.get("args"), MAX_ARGUMENT_CHARS)
    try:
        process = subprocess.Popen(
            [command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_variables(plugin)},
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        reason = (getattr(exc, "strerror", None) or str(exc)).lower()
        raise ConfigError(f"cannot run {name} for a credential: {reason}") from None
    with process:
        try:
            content, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            limit = format_duration(timeout_s)
            raise ConfigError(f"{name} gave no credential within {limit}") from None
        finally:
            with suppress(ProcessLookupError):  # its child processes may still run
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise ConfigError(f"{name} gave no credential: it ended with {process.returncode}")
    return _read(content, name)


def _variables(plugin: dict[str, Any]) -> dict[str, str]:
    info = {
        "apiVersion": plugin.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    found = {"KUBERNETES_EXEC_INFO": json.dumps(info)}
    for one in mappings(plugin.get("env")):
        found[str(one.get("name"))] = str(one.get("value"))
    return found


def _read(content: bytes, name: str) -> Printed:
    status = mapping(parsed(content).get("status"))
    keys = ("token", "clientCertificateData", "clientKeyData")
    found = Printed(*(text(status.get(key), len(content)) for key in keys))
    if not found.token and not (found.certificate and found.key):
        raise ConfigError(f"{name} printed no credential")
    return found
