"""Which runtime to call: the configured endpoint, or the first that answers.

Nothing is sent to validate a connection: a plain ``connect()`` detects problems of a socket without
a round trip.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.config import Config, socket_path
from pycrictl.base.errors import ConnectError, PycrictlError
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.errmap import (
    MISSING,
    SOCKET_HINT,
    Obstacle,
    connect_error,
    try_connect,
    unreachable,
)
from pycrictl.runtime.cri.calls.redact import call_log

ENDPOINTS: Final = (
    "unix:///run/containerd/containerd.sock",
    "unix:///run/crio/crio.sock",
    "unix:///var/run/cri-dockerd.sock",
    "unix:///run/k3s/containerd/containerd.sock",
    "unix:///run/k0s/containerd.sock",
    "unix:///var/snap/microk8s/common/run/containerd.sock",
)
"""The endpoints tried if none is configured, in this order.

The first three are crictl's. The others are those of distributions that bundle containerd: k3s, and
RKE2, which is built on it (docs.rke2.io, CLI tools); k0s (docs.k0sproject.io, Runtime:
``--address=/run/k0s/containerd.sock``); MicroK8s (the snap's ``args/containerd``).
"""

DISCOVERY_TIMEOUT_S: Final = 1.0


def open_client(
    config: Config,
    service: Literal["runtime", "image"] = "runtime",
    *,
    endpoints: Sequence[str] = ENDPOINTS,
    note: Callable[[str], None] = lambda text: None,
) -> CriClient:
    """Connect to the configured endpoint of a service, or to the first runtime that answers.

    A configured endpoint is retried up to ``max_retries`` times, with growing pauses, while nothing
    listens on its socket; ``note`` is called before the first retry.

    Raises:
        UsageError: the endpoint is empty or not a unix socket.
        ConnectError: it cannot be reached; or none is configured, and no known endpoint answers.
    """
    endpoint = config.runtime_endpoint if service == "runtime" else config.image_endpoint
    timeout_s = config.timeout_s
    if endpoint is None:
        return find(timeout_s, endpoints)
    path = noderoot.given(socket_path(endpoint, f"{service}-endpoint"))
    if not path.startswith("/"):
        path = str(Path(path).absolute())
    _wait_for_listener(path, timeout_s, config.max_retries, note)
    return CriClient(path, timeout_s=timeout_s)


def retry_pauses(max_retries: int) -> Iterator[float]:
    """Return the seconds to wait before each retry: 0.5, 1, 2, 4, 5, 5 …; endless if negative."""
    pauses = itertools.chain((0.5, 1.0, 2.0, 4.0), itertools.repeat(5.0))
    return pauses if max_retries < 0 else itertools.islice(pauses, max_retries)


def _wait_for_listener(
    path: str, timeout_s: float, max_retries: int, note: Callable[[str], None]
) -> None:
    pauses = retry_pauses(max_retries)
    for attempt in itertools.count(1):
        connection = try_connect(path, timeout_s)
        if not isinstance(connection, Obstacle):
            connection.close()
            return
        # A missing file is final: for a mistyped path, a script would otherwise wait in vain.
        is_refused = connection.may_pass and connection.reason != MISSING
        pause_s = next(pauses, None) if is_refused else None
        if pause_s is None:
            raise connect_error(connection, f"unix://{path}")
        if log := call_log():
            log.debug("= attempt %d: %s; retrying in %gs", attempt, connection.reason, pause_s)
        if attempt == 1:
            note(f"{unreachable(f'unix://{path}')}{connection.reason}; trying again")
        time.sleep(pause_s)


def find(timeout_s: float, endpoints: Sequence[str] = ENDPOINTS) -> CriClient:
    """Return a client of the first endpoint that answers a ``Version`` call."""
    failures: list[str] = []
    missing: list[str] = []
    hint = ""
    for endpoint in endpoints:
        path = noderoot.locate(endpoint.removeprefix("unix://"))
        answer = _probe(path, timeout_s)
        if log := call_log():
            said = answer.reason if isinstance(answer, Obstacle) else "it answers"
            log.debug("= no endpoint is configured; unix://%s: %s", path, said)
        if isinstance(answer, CriClient):
            return answer
        if answer.reason == MISSING:
            missing.append(f"unix://{path}")
        else:
            failures.append(f"unix://{path} ({answer.reason})")
            hint = hint or answer.hint
    if missing:
        failures.append(f"no such file: {', '.join(missing)}")
    raise ConnectError(
        f"no container runtime answers: {', '.join(failures)}", hint=hint or SOCKET_HINT
    )


def _probe(path: str, timeout_s: float) -> CriClient | Obstacle:
    """Return a client after a successful ``Version`` call, or the obstacle."""
    connection = try_connect(path, DISCOVERY_TIMEOUT_S)
    if isinstance(connection, Obstacle):
        return connection
    connection.close()
    client = CriClient(path, timeout_s=timeout_s)
    try:
        limit_s = min(timeout_s, DISCOVERY_TIMEOUT_S)
        client.call("Version", cri_pb2.VersionRequest(), timeout_s=limit_s)
    except PycrictlError as error:
        client.close()
        reason, server = error.message, f'the server at "{client.endpoint}" '
        for beginning in (unreachable(client.endpoint), "Version: ", server):
            reason = reason.removeprefix(beginning)
        return Obstacle(reason, error.hint or "")
    return client
