"""The calls that operators make to a proxy's admin socket, except for the hand-over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConfigError
from pycrictl.base.servicelog import Log
from pycrictl.base.serviceoptions import MAX_COUNT
from pycrictl.base.units import quote
from pycrictl.node.kubelet import find_kubelet
from pycrictl.node.kubelet_config import find_kubelet_config, read_kubelet_config
from pycrictl.proxy.admin import Call
from pycrictl.proxy.copies.copy_service import CopyService
from pycrictl.proxy.handover import HandOver
from pycrictl.proxy.pulls.limiter import PullLimiter
from pycrictl.proxy.pulls.limiter_status import (
    containerd_document,
    kubelet_document,
    status_document,
)
from pycrictl.proxy.runtime_lookup import version
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Upstream
from pycrictl.runtime.containerd.config_toml import config_path, from_file
from pycrictl.runtime.containerd.daemon import listener_pid


@dataclass
class Operators:
    """Answers the admin calls in ``calls``."""

    settings: ProxySettings
    limiter: PullLimiter
    upstream: Upstream
    copies: CopyService
    hand_over: HandOver
    log: Log

    def __post_init__(self) -> None:
        self._queue = self.limiter.queue
        self._limit_origin = self.settings.limit_origin

    @property
    def calls(self) -> dict[str, Call]:
        return {
            "status": self._status,
            "set-limit": self._set_limit,
            "cancel": self._cancel,
            "history": self._history,
            "sockets": self._sockets,
        }

    async def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        await self.limiter.layers.refresh()
        return {
            **status_document(
                self._queue,
                now=asyncio.get_running_loop().time(),
                wall_s=time.time(),
                seen=self.limiter.layers.seen,
                limit_origin=self._limit_origin,
            ),
            "predecessor": self.hand_over.status(),
            "copies": self.copies.snapshot(),
            "kubelet": await asyncio.to_thread(self._kubelet),
            "containerd": await self._containerd(),
        }

    async def _set_limit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        limit = request.get("limit")
        if type(limit) is not int or not 0 <= limit <= MAX_COUNT:
            raise ValueError(f"the limit must be a number from 0 to {MAX_COUNT}")
        before = self._queue.limit
        self._queue.set_limit(limit, now=asyncio.get_running_loop().time())
        self._limit_origin = "pull-limiter set"
        self.log.info("limit", limit=limit, before=before)
        return {"limit": limit, "before": before}

    async def _cancel(self, request: Mapping[str, Any]) -> dict[str, Any]:
        target = request.get("target")
        if not isinstance(target, str) or not target:
            raise ValueError("say what to give up: an image or a pod")
        found = self.limiter.cancel(target)
        if not found:
            raise ValueError(f"no pull of {quote(target)} waits for a slot")
        self.log.info("cancel", target=target, calls=len(found))
        return {
            "cancelled": [
                {"image": call.image, "pod": None if call.pod is None else str(call.pod)}
                for call in found
            ]
        }

    async def _history(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the history is; the client reads it there, which delays no call."""
        return {"folder": self.settings.state_dir}

    async def _sockets(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"listen": self.settings.listen, "upstream": self.settings.upstream}

    def _kubelet(self) -> dict[str, Any]:
        path = self.settings.kubelet_config
        try:
            found = read_kubelet_config(path) if path else find_kubelet_config(find_kubelet())
            return kubelet_document(found, "")
        except ConfigError as exc:
            return kubelet_document(None, exc.message)

    async def _containerd(self) -> dict[str, Any] | None:
        answer = await version(self.upstream, 2.0)
        if answer.code:
            return {"problem": answer.message}
        name = ""
        with contextlib.suppress(DecodeError):
            name = cri_pb2.VersionResponse.FromString(answer.response or b"").runtime_name
        if name != "containerd":
            return None

        def read() -> dict[str, Any]:
            pid = listener_pid(f"unix://{self.settings.upstream}")
            return containerd_document(from_file(config_path(pid)))

        return await asyncio.to_thread(read)
