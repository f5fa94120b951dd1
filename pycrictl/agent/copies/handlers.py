"""Requests about the copies of one pod of this node, and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from aiohttp import web

from pycrictl.agent.copies import stream
from pycrictl.agent.copies.refusals import Refused, Unspecified
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import CopySpec, Owner, Session, parse_name, parse_spec
from pycrictl.errors import UsageError
from pycrictl.foreign import parse
from pycrictl.units import quote

MAX_BODY_BYTES: Final = 64 * 1024

_NO_SUCH: Final = "the server could not find the requested resource"


class PodOfNode(NamedTuple):
    """A pod of this node.

    Attributes:
        namespace, name, uid: as the API server has them.
        container: what a copy is about that names none.
        containers: the names of all of them; empty if they are not known.
    """

    namespace: str
    name: str
    uid: str
    container: str
    containers: tuple[str, ...] = ()


class CopyHandlers:
    """Answers requests.

    Args:
        copies: of this node.
        group_version: of the objects.
    """

    def __init__(self, copies: Copies, group_version: str) -> None:
        self._copies = copies
        self._group_version = group_version

    async def answer(
        self,
        request: web.BaseRequest,
        owner: Owner,
        pod: PodOfNode,
        words: list[str],
        given: Mapping[str, str],
    ) -> web.StreamResponse:
        """Answer a request of a user who may make copies of this pod's containers.

        Args:
            request: of that user.
            owner: the user.
            pod: which it is about.
            words: of its path, after the resource.
            given: its parameters.

        Raises:
            Refused: what it asks for cannot be.
        """
        copies = self._copies
        match request.method, words:
            case "POST", []:
                return self._respond(await self._begin(request, owner, pod), 201)
            case "GET", [name]:
                return self._respond(copies.find(name, owner, *pod[:3]).session)
            case "POST", [name, "commit"]:
                await body_of(request)
                copy = copies.find(name, owner, *pod[:3])
                return self._respond(await copies.commit(copy))
            case "POST", [name, "abandon"]:
                await body_of(request)
                copies.refuse(name, owner)
                copy = copies.find(name, owner, *pod[:3])
                return self._respond(await copies.abandon(copy))
            case "GET", [name, "data"]:
                copy = copies.find(name, owner, *pod[:3])
                if not stream.wants_stream(request):
                    raise Refused(400, "the bytes of a copy go over a WebSocket")
                await copies.check(copy)
                return await stream.serve(request, copies, copy, _offset(given))
            case _, [] | [_] | [_, "commit" | "abandon" | "data"]:
                raise Refused(405, f"{request.method[:20]} is not served here")
        raise Refused(404, _NO_SUCH)

    async def _begin(self, request: web.BaseRequest, owner: Owner, pod: PodOfNode) -> Session:
        name, spec = await asked_for(request)
        try:
            return await self._copies.begin(owner, *pod[:4], spec, name)
        except Refused as exc:
            if exc.code == 404 and pod.containers and spec.container not in ("", *pod.containers):
                raise Refused(
                    404,
                    f"pod {quote(f'{pod.namespace}/{pod.name}')} has no container"
                    f" {quote(spec.container)}, only {', '.join(pod.containers)}",
                ) from exc
            raise

    def _respond(self, session: Session, status: int = 200) -> web.Response:
        document = session.document(self._group_version, self._copies.expires(session))
        return web.Response(
            body=json.dumps(document, separators=(",", ":")).encode(),
            status=status,
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"},
        )


async def asked_for(request: web.BaseRequest) -> tuple[str, CopySpec]:
    """Return the name of the session that a request begins, which may be empty, and what it asks.

    Raises:
        Unspecified: it is not such a request.
    """
    try:
        content = await body_of(request)
        document = parse(content)
        return parse_name(document), parse_spec(document)
    except UsageError as exc:
        raise Unspecified(422, exc.message) from None
    except ValueError:
        raise Unspecified(400, "the object is not JSON") from None
    except Refused as exc:
        raise Unspecified(exc.code, exc.message) from None


async def body_of(request: web.BaseRequest) -> bytes:
    """Read a request's body, which is taken even where it says nothing.

    Raises:
        Refused: it is too large.
    """
    content = await request.content.read(MAX_BODY_BYTES + 1)
    while len(content) <= MAX_BODY_BYTES and (more := await request.content.readany()):
        content += more
    if len(content) > MAX_BODY_BYTES:
        raise Refused(413, "the object is too large")
    return content


def _offset(given: Mapping[str, str]) -> int:
    text = given.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise Refused(400, "offset is not a number")
    return int(text)
