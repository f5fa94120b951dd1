"""Lists of the API server, kept up to date by watches, like client-go's reflectors."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import mapping, mappings, text
from pycrictl.base.servicelog import Log
from pycrictl.cluster.agent.api.names import Document
from pycrictl.cluster.agent.asyncapi import AsyncApiClient
from pycrictl.kube.apiclient import Expired
from pycrictl.streams.loop import end_tasks

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
    """Keeps lists as one. After a failure it keeps the old items, and lists again after a pause.

    Args:
        paths: of the lists.
        parse: returns None for an object to leave out.
    """

    def __init__(
        self,
        api: AsyncApiClient,
        paths: Sequence[str],
        query: Mapping[str, str],
        parse: Callable[[Document], T | None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._api = api
        self._items: dict[str, dict[str, T]] = {path: {} for path in paths}
        self._errors: dict[str, PycrictlError] = {}
        self._asked: dict[str, asyncio.Event] = {}
        self._query = query
        self._parse = parse
        self._on_change = on_change
        self._failed_at = 0.0
        self._log = Log(__name__)

    @property
    def items(self) -> dict[str, T]:
        found: dict[str, T] = {}
        for items in self._items.values():
            found |= items  # atomic: threads read them, too
        return found

    def start(self) -> None:
        if not self.tasks:
            self._asked = {path: asyncio.Event() for path in self._items}
            self.tasks = [asyncio.create_task(self._run(path)) for path in self._items]

    async def stop(self) -> None:
        """End the watches; ``items`` is kept, but no longer updated."""
        tasks, self.tasks = self.tasks, []
        await end_tasks(tasks)

    @property
    def error(self) -> PycrictlError | None:
        return next(iter(self._errors.values()), None)

    @property
    def failing_s(self) -> float:
        return time.monotonic() - self._failed_at if self._errors else 0.0

    async def ready(self, timeout_s: float) -> None:
        """Wait until each list was tried once; raise the error of a failed one without items."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for asked in self._asked.values():
                    await asked.wait()
        for path, error in self._errors.items():
            if not self._items[path]:
                raise error

    async def _run(self, path: str) -> None:
        rest_s = FIRST_REST_S
        while True:
            try:
                self._items[path], version = await list_all(
                    self._api, path, self._query, self._parse
                )
                self._errors.pop(path, None)
                rest_s = FIRST_REST_S
                self._changed(path)
                while version:
                    version = await self._watch(path, version)
            except Expired:
                continue
            except PycrictlError as exc:
                if not self._errors:
                    self._failed_at = time.monotonic()
                if path not in self._errors:
                    self._log.warning("no_watch", path=path, error=exc.message)
                self._errors[path] = exc
                self._changed(path)
            await asyncio.sleep(rest_s * random.uniform(0.8, 1.2))
            rest_s = min(2 * rest_s, LONGEST_REST_S)

    async def _watch(self, path: str, version: str) -> str:
        """Follow one watch to its end; return the version where the next one resumes."""
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(WATCH_S, 2 * WATCH_S)),
        }
        begun = asyncio.get_running_loop().time()
        async for event in self._api.watch(path, query):
            document = event["object"]
            version = text(mapping(document.get("metadata")).get("resourceVersion")) or version
            if event.get("type") == "BOOKMARK":
                continue
            one = self._parse(document) if event.get("type") != "DELETED" else None
            if one is None:
                self._items[path].pop(_uid(document), None)
            else:
                self._items[path][_uid(document)] = one
            self._changed(path)
        if asyncio.get_running_loop().time() - begun < FIRST_REST_S:
            await asyncio.sleep(FIRST_REST_S)  # the server ends watches at once
        return version

    def _changed(self, path: str) -> None:
        self._asked[path].set()
        self._on_change()


def paths_of_pods(namespaces: Sequence[str]) -> list[str]:
    """Return the paths that list the pods of some namespaces, or if none are given, of all."""
    return [f"/api/v1/namespaces/{name}/pods" for name in namespaces] or ["/api/v1/pods"]


def _uid(document: Document) -> str:
    fields = mapping(document.get("metadata"))
    return text(fields.get("uid")) or f"{fields.get('namespace', '')}/{fields.get('name', '')}"
