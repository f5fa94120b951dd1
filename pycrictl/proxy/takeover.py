"""How one program of the proxy follows another: what the new one does; see ``handover``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from pycrictl.errors import ConnectError, RemoteProtocolError
from pycrictl.proxy.handover import STEP_S, MessageLines
from pycrictl.proxy.pulls.limiter import PullLimiter
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.units import quote

HOLD_S: Final = 2.0
"""How long slots are held for the calls that the program before had in line."""

_LINE_BYTES: Final = 64 * 1024 * 1024
_LOOK_S: Final = 0.01


class Predecessor:
    """The program that this one takes over from, and its pulls that run."""

    def __init__(self, lines: MessageLines, offer: Mapping[str, Any]) -> None:
        self._lines = lines
        self._pulls: dict[int, asyncio.Future[str | None]] = {}
        self.pid = int(offer["pid"])
        self.folders = frozenset(map(str, offer["folders"]))
        self.streams = str(offer["streams"])

    @classmethod
    async def reach(cls, path: str) -> Predecessor | None:
        """Connect to the program behind an admin socket; None if nobody listens there."""
        where = f"the proxy's admin socket {quote('unix://' + path)}"
        try:
            async with asyncio.timeout(STEP_S):
                streams = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as exc:
            reason = (exc.strerror or "timed out").lower()
            raise ConnectError(f"cannot reach {where}: {reason}") from None
        lines = MessageLines(*streams)
        lines.send({"call": "take-over"})
        offer = await lines.receive(STEP_S) or {}
        if "error" in offer:
            raise RemoteProtocolError(f"{where} refuses: {offer['error']}")
        try:
            return cls(lines, offer)
        except (ValueError, KeyError, TypeError):
            raise RemoteProtocolError(f"{where} does not hand over as this program does") from None

    def document(self) -> dict[str, Any]:
        return {"pid": self.pid, "pulls": len(self._pulls)}

    @property
    def pull_count(self) -> int:
        return len(self._pulls)

    async def take(self, own: str, limiter: PullLimiter, *, port: bool) -> int:
        """Say that this program listens at ``own``; take over the pulls that run.

        Return how many wait. ``port``: whether the old program is to leave the port of its streams.
        """
        self._lines.send({"socket": own, "port": port})
        state = await self._lines.receive(STEP_S)
        if state is None:
            raise RemoteProtocolError("the proxy that was to hand over has ended")
        loop = asyncio.get_running_loop()
        for document in state["running"]:
            end = self._pulls[document["pull"]] = loop.create_future()
            pod = document["pod"]
            limiter.count(
                document["image"],
                end,
                began_s=loop.time() - document["started"],
                asked=document["asked"],
                pod=PodKey(*map(str, pod)) if pod else None,
                runtime_handler=document["runtimeHandler"],
                takes_slot=document["takesSlot"],
            )
        if state["waiting"]:
            limiter.hold()
        return int(state["waiting"])

    async def serving(self) -> None:
        """Say that this program serves now, and return when the old one has confirmed it."""
        self._lines.send({"serving": True})
        while (answer := await self._lines.receive(STEP_S)) is not None and "ended" in answer:
            self._end(answer)
        if answer is not None and "error" in answer:
            raise RemoteProtocolError(f"the proxy does not hand over: {answer['error']}")

    async def follow(self) -> None:
        """Take notice of the ends of its pulls until it ends itself."""
        while (message := await self._lines.receive()) is not None:
            self._end(message)
        self._lines.close()
        for number in list(self._pulls):
            self._end({"ended": number, "error": None})

    def _end(self, message: Mapping[str, Any]) -> None:
        end = self._pulls.pop(message.get("ended", -1), None)
        if end is not None and not end.done():
            end.set_result(message.get("error"))


async def let_in(limiter: PullLimiter, count: int) -> None:
    """Hold the slots until so many calls are in line that came to the program before."""
    time: Callable[[], float] = asyncio.get_running_loop().time
    began_at = time()
    while time() < began_at + HOLD_S:
        if sum(call.asked < began_at for call in limiter.in_line()) >= count:
            break
        await asyncio.sleep(_LOOK_S)
    limiter.release()
