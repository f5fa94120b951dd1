"""The proxy as a whole: puts its parts together, serves until SIGTERM, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.containerd.daemon import listener_pid
from pycrictl.containerd.settings import pull_settings
from pycrictl.cri.calls.transport import look, unix
from pycrictl.errors import ConfigError
from pycrictl.proxy.admin import AdminServer
from pycrictl.proxy.copies.job import CopyJob
from pycrictl.proxy.copies.quotas import Quotas
from pycrictl.proxy.copies.service import COPY_FROM, COPY_TO, Copies
from pycrictl.proxy.figures.recorder import PullRecorder
from pycrictl.proxy.lookup import Lookup, PullTarget
from pycrictl.proxy.pulls import reports
from pycrictl.proxy.pulls.kubelet_config import KUBELET_CONFIG, read_kubelet_config
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.limiter import PULL_PATHS, PullLimiter
from pycrictl.proxy.pulls.progress import IMAGE_PULL_PROGRESS, Bell, PullProgress
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.pulls.status import containerd_document, kubelet_document, status_document
from pycrictl.proxy.relay.calls import Answer, CallRecord, Peer
from pycrictl.proxy.relay.server import LINGER_S, RelayServer
from pycrictl.proxy.relay.upstream import Upstream
from pycrictl.proxy.serve.listen import UnixListener, notify
from pycrictl.proxy.serve.log import Log, Seldom
from pycrictl.proxy.serve.stream_server import COPY_PATH, StreamServer
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.settings import MAX_LIMIT, ProxySettings
from pycrictl.signals import ENDING
from pycrictl.wire.codes import UNIMPLEMENTED

LOGGER: Final = "pycrictl.proxy"

CALLS_S: Final = 10.0
"""How long other calls than pulls may hold up the end. Nobody is refused meanwhile: it comes in a
moment without calls."""

WATCHED_S: Final = reports.LINGER_S + 1.0
"""How long after the last pull its watchers may hold up the end."""

_LOOK_S: Final = 1.0
_DRAIN_LOOK_S: Final = 0.05


class App:
    """A running proxy.

    Args:
        settings: of the proxy.
        environ: for systemd's ``NOTIFY_SOCKET``.
    """

    def __init__(self, settings: ProxySettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._log = Log(LOGGER)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._limit_origin = settings.limit_origin
        self._queue = PullQueue[Answer](
            settings.limit,
            settings.policy,
            retry_interval_s=settings.retry_interval_s,
            retries=settings.retries,
        )
        bell = Bell()
        tokens = Tokens[PullTarget | CopyJob]()
        upstream = Upstream(settings.upstream)
        lookup = Lookup(upstream)
        self._layers = LayerPoller(settings.upstream, log=self._log, on_look=bell.ring)
        self._recorder = PullRecorder(
            layers=self._layers,
            lookup=lookup,
            log=self._log,
            on_record=(),
            history_folder=settings.state_dir,
        )
        self._limiter = PullLimiter(
            self._queue,
            upstream=upstream,
            lookup=lookup,
            layers=self._layers,
            log=self._log,
            on_change=bell.ring,
            on_end=self._recorder.take,
        )
        self._progress = PullProgress(
            lookup,
            self._queue.book,
            self._layers,
            bell=bell,
            tokens=tokens,
            url=lambda token: self._streams.url(token),
        )
        self._copies = Copies(
            lookup,
            Quotas(
                size_limit_bytes=settings.copy_size_limit_bytes,
                copies_per_pod=settings.copies_per_pod,
            ),
            runtime_path=settings.upstream,
            spool_folder=settings.spool_dir,
            tokens=tokens,
            url=lambda token: self._streams.url(token, COPY_PATH),
            log=self._log,
        )
        self._streams = StreamServer[PullTarget](
            redeem=self._progress.redeem,
            follow=self._progress.follow,
            log=self._log,
            redeem_copy=self._copies.redeem,
        )
        self._admin = AdminServer(
            {"status": self._status, "set-limit": self._set_limit, "history": self._history}
        )
        self._relay = RelayServer(
            settings.upstream,
            own={
                **dict.fromkeys(PULL_PATHS, self._limiter.handle),
                IMAGE_PULL_PROGRESS: self._progress.handle,
                COPY_TO: self._copies.handle_to,
                COPY_FROM: self._copies.handle_from,
            },
            on_call=self._ended,
        )
        self._upstream = upstream
        self._log_reset = Seldom(self._log.info, "stream")

    async def run(self) -> None:
        """Serve until a signal ends it.

        Raises:
            UsageError: a socket is in use or cannot be made.
            ConfigError: the streaming server's address cannot be used.
        """
        settings = self._settings
        _raise_file_limit()
        async with contextlib.AsyncExitStack() as stack:
            listener = UnixListener(Path(settings.listen))
            stack.callback(listener.close)
            admin = UnixListener(Path(settings.admin_socket))
            stack.callback(admin.close)
            await self._streams.start(settings.stream_address)
            stack.push_async_callback(self._layers.close)
            stack.push_async_callback(self._recorder.stop)
            stack.push_async_callback(self._copies.stop)
            stack.push_async_callback(self._streams.stop)
            await self._admin.start(admin.socket)
            stack.push_async_callback(self._admin.stop)
            self._take_signals()
            await self._count_earlier()
            await self._relay.start(listener.socket)
            stack.push_async_callback(self._limiter.stop)
            self._log.info(
                "ready",
                listen=settings.listen,
                upstream=settings.upstream,
                streams=self._streams.address.authority,
                limit=settings.limit,
                limit_origin=settings.limit_origin,
                when_full=settings.policy.value,
            )
            notify("READY=1", self._environ)
            await self._look_at_runtime()
            await self._stop.wait()
            notify("STOPPING=1", self._environ)
            self._limiter.close()
            await self._drain()
            await self._relay.stop(drain_s=LINGER_S, is_awaited=_ends)
        self._log.info("stopped")

    def _take_signals(self) -> None:
        """Stop at a signal, in good order at the first and at once at the second."""

        def stop() -> None:
            (self._stop_now if self._stop.is_set() else self._stop).set()

        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup(1) has it for SIGHUP
                self._loop.add_signal_handler(number, stop)

    async def _drain(self) -> None:
        """Serve on as before until pulls and copies have ended, and no call is cut off."""
        limit_s = self._settings.drain_timeout_s
        self._log.info("stopping", drain="no limit" if limit_s is None else limit_s)
        await self._while(lambda: bool(self._pulls() or self._copies.snapshot()), limit_s)
        if limit_s == 0:
            return
        # Who watches a pull is told its end.
        ended = self._queue.book.ended
        if ended and (left_s := ended[-1].ended + WATCHED_S - self._loop.time()) > 0:
            await self._while(lambda: bool(self._streams.open_count), left_s)
        await self._while(lambda: any(map(_ends, self._relay.open_paths())), CALLS_S)

    async def _while(self, is_busy: Callable[[], bool], limit_s: float | None) -> None:
        """Return when nothing is busy any more, the time is over, or it is to end at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while is_busy() and not self._stop_now.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stop_now.wait(), _DRAIN_LOOK_S)

    def _pulls(self) -> int:
        """Return how many PullImage calls have no answer yet."""
        return sum(path in PULL_PATHS for path in self._relay.open_paths())

    def _ended(self, record: CallRecord, peer: Peer) -> None:
        """Log a stream that passed through; unary calls would drown everything else."""
        # Clients try streams of lists in vain where the runtime has none.
        if not _ends(record.path) and record.code != UNIMPLEMENTED:
            # A client can begin and reset as many as it likes.
            write = self._log_reset if record.code is None else partial(self._log.info, "stream")
            write(
                method=record.path.rpartition("/")[2],
                code="" if record.code is None else record.code,
                bytes=record.response_bytes,
                duration_s=round(record.duration_s, 3),
                pid=peer.pid,
                uid=peer.uid,
            )

    async def _look_at_runtime(self) -> None:
        """Warn of a runtime that does not answer: it may be starting, or the path is wrong."""
        upstream = self._settings.upstream
        found = await asyncio.to_thread(look, unix(upstream), timeout_s=_LOOK_S)
        if found is not None:
            self._log.warning("no_runtime", upstream=upstream, reason=found.reason)

    async def _count_earlier(self) -> None:
        """Let pulls that an earlier proxy left at the runtime count until they are gone."""
        if not self._settings.limit:
            return
        for lease_id in await self._layers.running() or ():
            self._limiter.count_earlier(f"earlier pull {lease_id}", self._layers.gone(lease_id))

    # Admin calls

    async def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        await self._layers.refresh()
        return {
            **status_document(
                self._queue,
                now=self._loop.time(),
                wall_s=time.time(),
                progress=self._layers.progress,
                limit_origin=self._limit_origin,
            ),
            "copies": self._copies.snapshot(),
            "kubelet": await asyncio.to_thread(self._kubelet),
            "containerd": await self._containerd(),
        }

    async def _set_limit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        limit = request.get("limit")
        if type(limit) is not int or not 0 <= limit <= MAX_LIMIT:
            raise ValueError(f"the limit must be a number from 0 to {MAX_LIMIT}")
        before = self._queue.limit
        self._limiter.set_limit(limit)
        self._limit_origin = "pull-limiter set"
        self._log.info("limit", limit=limit, before=before)
        return {"limit": limit, "before": before}

    async def _history(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Say where the history is: reading it there delays no call."""
        return {"folder": self._settings.state_dir}

    def _kubelet(self) -> dict[str, Any]:
        path = self._settings.kubelet_config or KUBELET_CONFIG
        try:
            return kubelet_document(read_kubelet_config(path), "")
        except ConfigError as exc:
            return kubelet_document(None, exc.message)

    async def _containerd(self) -> dict[str, Any] | None:
        """Return what containerd itself limits; None for another runtime."""
        answer = await self._upstream.unary(
            "/runtime.v1.RuntimeService/Version",
            cri_pb2.VersionRequest().SerializeToString(),
            timeout_s=2.0,
        )
        if answer.code:
            return {"problem": answer.message}
        name = ""
        with contextlib.suppress(DecodeError):
            name = cri_pb2.VersionResponse.FromString(answer.response or b"").runtime_name
        if name != "containerd":
            return None

        def read() -> dict[str, Any]:
            pid = listener_pid(f"unix://{self._settings.upstream}")
            return containerd_document(pull_settings({}, pid=pid))

        return await asyncio.to_thread(read)


def run(settings: ProxySettings, environ: Mapping[str, str]) -> None:
    """Serve until a signal ends it; errors as ``App.run``."""

    async def serve() -> None:
        await App(settings, environ).run()

    with Log(LOGGER).of_asyncio():
        asyncio.run(serve())


def _ends(path: str) -> bool:
    """Return whether a call ends by itself; a stream lasts as long as its client."""
    name = path.rpartition("/")[2]
    return name != "GetContainerEvents" and not name.startswith("Stream")


def _raise_file_limit() -> None:
    """Take as many descriptors as the system allows: every client and pull is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
