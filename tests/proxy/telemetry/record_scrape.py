"""Records the metrics of a proxy after a few pulls, copies, failures and refusals.

    python -m tests.proxy.telemetry.record_scrape

Needs root, for the copies.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import grpc

from pycrictl._proto import cri_pb2
from pycrictl.proxy import admin
from pycrictl.runtime.cri.calls.client import CriClient
from tests.e2e.node.kubelet import RUNTIME
from tests.fakecri import Status
from tests.fakecri.server import FakeServer, serve
from tests.proxy.copier import Copier, pretended
from tests.proxy.program import Program
from tests.support.limited_pulls import ABSENT, Gate
from tests.support.scrapes import LISTEN, RECORDED, Scrape
from tests.waiting import wait_until


def record(fake: FakeServer, folder: Path) -> str:
    gate = Gate()
    pulled = cri_pb2.PullImageResponse(image_ref="r")
    fake.prepare("ImageStatus", ABSENT, repeat=True)
    fake.prepare("PullImage", Status(grpc.StatusCode.UNKNOWN, "no"), pulled, gate, repeat=True)
    fake.prepare("Version", cri_pb2.VersionResponse(), repeat=True)
    fake.prepare("GetContainerEvents", [cri_pb2.ContainerEventResponse(container_id="a")])
    with Program(folder, fake.endpoint, "--when-full", "retry", "--retries=0", *LISTEN) as proxy:
        admin.ask(str(proxy.admin_path), "set-limit", timeout_s=60, limit=1)
        with contextlib.suppress(grpc.RpcError):
            proxy.kubelet.pull("fails")
        proxy.kubelet.pull("works")
        held = proxy.kubelet.start_pull("held")
        wait_until(lambda: gate.running == 1)
        with contextlib.suppress(grpc.RpcError):
            proxy.kubelet.pull("refused")
        gate.open.set()
        held.result(60)
        with CriClient(str(proxy.socket_path), timeout_s=60) as client:
            list(client.stream("GetContainerEvents", cri_pb2.GetEventsRequest()))
        copier = Copier(proxy)
        with copier.client:
            copier.into("/etc/hostname", "/to")
        for _ in range(5):
            proxy.kubelet.call(
                RUNTIME + "Version", cri_pb2.VersionRequest(), cri_pb2.VersionResponse
            )
        wait_until(lambda: Scrape(proxy)("copies_total", direction="to", end="done") == 1)
        wait_until(lambda: Scrape(proxy)("pulls_total", outcome="pulled", code="OK") == 2)
        return Scrape(proxy).text


if __name__ == "__main__":
    with (
        serve() as runtime,
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="px-") as name,
        pretended(runtime, Path(name, "root")),
    ):
        RECORDED.write_text(record(runtime, Path(name)))
