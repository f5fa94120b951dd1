"""Lists of the API server that are kept up to date by watches, as client-go's reflectors."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from pycrictl.agent.api.names import Document
from pycrictl.agent.asyncapi import AsyncApiClient
from pycrictl.errors import PycrictlError
from pycrictl.foreign import mapping, mappings, text
from pycrictl.kube.apiclient import Expired
from pycrictl.kube.pods import Pod, parse_pod
from pycrictl.servicelog import Log
from pycrictl.streaming.loop import end_tasks

WATCH_S: Final = 300
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 30.0

T = TypeVar("T")


async def list_all(
    api: AsyncApiClient, path: str, query: Mapping[str, str], parse: Callable[[Document], T | None]
) -> tuple[dict[str, T], str]:
    """Return the objects of a list by UID, and its resource version.

    ``parse`` returns None for an object to leave out.
    """
    found: dict[str, T] = {}
    version = ""
    async for page in api.pages(path, query):
        for document in mappings(page.get("items")):
            if (one := parse(document)) is not None:
                found[_uid(document)] = one
        version = text(mapping(page.get("metadata")).get("resourceVersion"))
    return found, version


class Reflector(Generic[T]):
    """Keeps a list. After a failure it goes on with what it had, and lists again after a rest.

    ``parse`` returns None for an object to leave out.
    """

    def __init__(
        self,
        api: AsyncApiClient,
        path: str,
        query: Mapping[str, str],
        parse: Callable[[Document], T | None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.items: dict[str, T] = {}
        self.error: PycrictlError | None = None
        self._api = api
        self._path = path
        self._query = query
        self._parse = parse
        self._on_change = on_change
        self._failed_at = 0.0
        self._asked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._log = Log(__name__)

    def start(self) -> None:
        if self.task is None:
            self._asked.clear()
            self.task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the watch; ``items`` stays as it is, and grows old."""
        task, self.task = self.task, None
        if task is not None:
            await end_tasks([task])

    @property
    def failing_s(self) -> float:
        return 0.0 if self.error is None else time.monotonic() - self._failed_at

    async def ready(self, timeout_s: float) -> None:
        """Return when it has been listed once; raise if that failed and nothing is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._asked.wait()
        if self.error is not None and not self.items:
            raise self.error

    async def _run(self) -> None:
        rest_s = FIRST_REST_S
        while True:
            try:
                self.items, version = await list_all(
                    self._api, self._path, self._query, self._parse
                )
                self.error, rest_s = None, FIRST_REST_S
                self._changed()
                while version:
                    version = await self._watch(version)
            except Expired:
                continue
            except PycrictlError as exc:
                if self.error is None:
                    self._failed_at = time.monotonic()
                    self._log.warning("no_watch", path=self._path, error=exc.message)
                self.error = exc
                self._changed()
            await asyncio.sleep(rest_s * random.uniform(0.8, 1.2))
            rest_s = min(2 * rest_s, LONGEST_REST_S)

    async def _watch(self, version: str) -> str:
        """Follow one watch to its end; return where the next one goes on."""
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(WATCH_S, 2 * WATCH_S)),
        }
        begun = asyncio.get_running_loop().time()
        async for event in self._api.watch(self._path, query):
            document = event["object"]
            version = text(mapping(document.get("metadata")).get("resourceVersion")) or version
            if event.get("type") == "BOOKMARK":
                continue
            one = self._parse(document) if event.get("type") != "DELETED" else None
            if one is None:
                self.items.pop(_uid(document), None)
            else:
                self.items[_uid(document)] = one
            self._changed()
        if asyncio.get_running_loop().time() - begun < FIRST_REST_S:
            await asyncio.sleep(FIRST_REST_S)  # a server that ends watches at once
        return version

    def _changed(self) -> None:
        self._asked.set()
        self._on_change()


class Reflectors(Generic[T]):
    """Several lists that are kept as one."""

    def __init__(self, parts: Sequence[Reflector[T]]) -> None:
        self._parts = parts

    @property
    def items(self) -> dict[str, T]:
        return {uid: one for part in self._parts for uid, one in part.items.items()}

    @property
    def is_running(self) -> bool:
        return any(part.task is not None for part in self._parts)

    def start(self) -> None:
        for part in self._parts:
            part.start()

    async def stop(self) -> None:
        for part in self._parts:
            await part.stop()

    async def ready(self, timeout_s: float) -> None:
        """Return when each has been listed once."""
        await asyncio.gather(*(part.ready(timeout_s) for part in self._parts))


def pods_in(
    api: AsyncApiClient,
    namespaces: Sequence[str],
    query: Mapping[str, str],
    on_change: Callable[[], None] = lambda: None,
) -> Reflectors[Pod]:
    return Reflectors(
        [Reflector(api, path, query, parse_pod, on_change) for path in paths_of_pods(namespaces)]
    )


def paths_of_pods(namespaces: Sequence[str]) -> list[str]:
    """Return the lists that have the pods of some namespaces; without any, of all."""
    return [f"/api/v1/namespaces/{name}/pods" for name in namespaces] or ["/api/v1/pods"]


def _uid(document: Document) -> str:
    fields = mapping(document.get("metadata"))
    return text(fields.get("uid")) or f"{fields.get('namespace', '')}/{fields.get('name', '')}"
