"""An asyncio client of the API server: calls, paged lists, watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from http.client import HTTPResponse
from typing import Any, Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.foreign import mapping, text
from pycrictl.kube.apiclient import ApiBase, ApiExchange, ApiRequest, read_document, read_events

TIMEOUT_S: Final = 10.0

PAGE: Final = 500
_SLACK_S: Final = 30.0


class AsyncApiClient(ApiBase):
    user_agent = "pycrictl-agent"
    timeout_s = TIMEOUT_S

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return await self._call(ApiRequest("GET", path, query))

    async def post(self, path: str, document: Mapping[str, Any]) -> Any:
        return await self._call(ApiRequest("POST", path, document=document))

    async def put(self, path: str, document: Mapping[str, Any]) -> Any:
        return await self._call(ApiRequest("PUT", path, document=document))

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        more = {**query, "limit": str(PAGE)}
        while True:
            page = await self.get(path, more)
            if not isinstance(page, dict):
                raise RemoteProtocolError("the API server did not return a list")
            yield page
            if not (follows := text(mapping(page.get("metadata")).get("continue"))):
                return
            more["continue"] = follows

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the events of a watch, until the server ends it.

        Args:
            query: with ``resourceVersion`` and ``timeoutSeconds``.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        def put(event: dict[str, Any] | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(events.put_nowait, event)

        def take(response: HTTPResponse) -> None:
            for event in read_events(response):
                put(event)

        silence_s = float(query["timeoutSeconds"]) + _SLACK_S
        request = ApiRequest("GET", path, {**query, "watch": "true"})
        exchange = ApiExchange(self, request, take, silence_s)
        exchange.outcome.add_done_callback(lambda _: put(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            exchange.outcome.result()
        finally:
            exchange.abandon()

    async def _call(self, request: ApiRequest) -> Any:
        exchange = ApiExchange(self, request, read_document, self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(exchange.outcome)
        except TimeoutError:
            raise self.too_late() from None
        finally:
            exchange.abandon()
