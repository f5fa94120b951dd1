"""Reading a proxy's stream of pulls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.sources.stream_watch import follow
from pycrictl.pulls.state import PullState
from tests.e2e.node.kubelet import RUNTIME
from tests.proxy.program import Program
from tests.support.limited_pulls import pod

WEB, DB = pod("web"), pod("db")


def sandboxes(request: Any, context: Any) -> cri_pb2.ListPodSandboxResponse:
    """Filter by a prefix of the ID, as containerd does."""
    pods = [
        cri_pb2.PodSandbox(id=sandbox.id, metadata=sandbox.config.metadata)
        for sandbox in (WEB, DB)
        if sandbox.id.startswith(request.filter.id)
    ]
    return cri_pb2.ListPodSandboxResponse(items=pods)


def ask(proxy: Program, pod_id: str = "", container_id: str = "") -> str:
    request = cri_pb2.ImagePullProgressRequest(pod_sandbox_id=pod_id, container_id=container_id)
    response = cri_pb2.ImagePullProgressResponse
    return proxy.kubelet.call(RUNTIME + "ImagePullProgress", request, response, timeout_s=60).url


def read(url: str) -> list[PullState]:
    pulls: list[PullState] = []
    reader = MessageReader({})
    asyncio.run(follow(url, reader, on_pull=pulls.append, on_note=pytest.fail, timeout_s=60))
    return pulls
