"""Authenticates and authorizes the front proxy, other agents, and clients of the kubelet's routes.

The API server's reviews of tokens and rights are cached for a short time, as in the kubelet.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from aiohttp import web

from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import mapping, text, texts
from pycrictl.cluster.agent.api.names import AUDIENCE, Document, Refusal
from pycrictl.cluster.agent.asyncapi import AsyncApiClient
from pycrictl.cluster.agent.peers import subject_of
from pycrictl.cluster.agent.trust import frontproxy
from pycrictl.cluster.agent.trust.frontproxy import Trust, User
from pycrictl.kube.apiclient import MAX_ANSWER_BYTES

TOKEN_S: Final = 120.0
ALLOWED_S: Final = 60.0
DENIED_S: Final = 15.0
"""How long reviews are cached: of valid tokens, of rights that are allowed, and denials of either.
No longer than the kubelet's (2 m, 5 m, 30 s)."""

MAX_CACHED: Final = 1000
MAX_TOKEN_CHARS: Final = 16 * 1024
MAX_REVIEWS: Final = 16

T = TypeVar("T")


class Cache(Generic[T]):
    """Caches answers of the API server; concurrent calls with the same key wait for one answer.

    ``about`` is the subject, for the Refusal of a call that the API server does not answer.
    """

    def __init__(self, about: str, keep_s: Callable[[T], float]) -> None:
        self._about = about
        self._keep_s = keep_s
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[T]] = {}

    async def get(self, key: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        now = time.monotonic()
        found = self._kept.get(key)
        if found is not None and found[0] > now:
            return found[1]
        if (task := self._asking.get(key)) is None:
            task = asyncio.create_task(ask())
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        try:
            answer = await asyncio.shield(task)
        except PycrictlError:
            raise Refusal(503, f"the API server cannot be asked about {self._about}") from None
        self._kept[key] = time.monotonic() + self._keep_s(answer), answer
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_CACHED:
            self._kept.popitem(last=False)
        return answer


class Access:
    """Checks who sent a request, and their rights; ``trust`` is None until the CAs are known."""

    def __init__(self, api: AsyncApiClient, node: str, own_user: Callable[[], str]) -> None:
        self.trust: Trust | None = None
        self.on_authenticated: Callable[[web.BaseRequest], None] = lambda request: None
        self.reviews = 0
        self._api = api
        self._node = node
        self._own_user = own_user
        self._tokens: Cache[tuple[User, tuple[str, ...]] | None] = Cache(
            "the token", lambda found: DENIED_S if found is None else TOKEN_S
        )
        self._rights: Cache[str] = Cache("rights", lambda why: DENIED_S if why else ALLOWED_S)
        self._slots = asyncio.Semaphore(MAX_REVIEWS)

    def is_front_proxy(self, transport: asyncio.BaseTransport | None) -> bool:
        found = transport.get_extra_info("ssl_object") if transport is not None else None
        return bool(self.trust and found and frontproxy.is_front_proxy(self.trust, found))

    def user(self, request: web.BaseRequest) -> User:
        """Return the user named by the front proxy; refuse requests that it did not send."""
        trust = self.trust
        if trust is None or not self.is_front_proxy(request.transport):
            raise Refusal(401, "Unauthorized")
        user = frontproxy.user_of(trust, request.headers)
        if user is None:
            raise Refusal(401, "Unauthorized")
        self.on_authenticated(request)
        return user

    async def peer(self, request: web.BaseRequest) -> None:
        """Refuse all but other agents."""
        own = self._own_user()
        # A token that does not even claim to be an agent's is not sent to the API server.
        is_claimed = bool(own) and subject_of(_token_of(request)) == own
        found = await self._of_token(request, AUDIENCE) if is_claimed else None
        if found is None or found[0].name != own or AUDIENCE not in found[1]:
            raise Refusal(401, "Unauthorized")
        self.on_authenticated(request)

    async def permit(self, request: web.BaseRequest, attributes: Document) -> User:
        """Return the user of a token; refuse one without a right, as a kubelet does.

        ``attributes`` are those of a SubjectAccessReview, and describe the right.
        """
        found = await self._of_token(request, "")
        if found is None:
            raise Refusal(401, "Unauthorized")
        user, _ = found
        if why := await self._denied(user, attributes):
            raise Refusal(403, why)
        self.on_authenticated(request)
        return user

    async def require(self, user: User, attributes: Document, why: str) -> None:
        """Refuse a user of the API server who lacks a right; ``why`` is the message then."""
        if await self._denied(user, attributes):
            raise Refusal(403, why, name=user.name, kind="users")

    async def node_proxy(self, request: web.BaseRequest) -> User:
        wanted = {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": self._node}
        return await self.permit(request, {"resourceAttributes": wanted})

    async def metrics(self, request: web.BaseRequest) -> User:
        wanted = {"verb": "get", "path": "/metrics"}
        return await self.permit(request, {"nonResourceAttributes": wanted})

    async def _of_token(
        self, request: web.BaseRequest, audience: str
    ) -> tuple[User, tuple[str, ...]] | None:
        token = _token_of(request)
        if not token or len(token) > MAX_TOKEN_CHARS:
            return None
        key = f"{audience} {hashlib.sha256(token.encode('utf-8', 'replace')).hexdigest()}"
        return await self._tokens.get(key, lambda: self._review_token(token, audience))

    async def _review(self, group: str, kind: str, spec: Document) -> Document:
        """Return the status of a review by the API server."""
        self.reviews += 1
        version = f"{group}.k8s.io/v1"
        review = {"apiVersion": version, "kind": kind, "spec": spec}
        async with self._slots:
            answer = await self._api.post(f"/apis/{version}/{kind.lower()}s", review)
        return mapping(answer, "status")

    async def _review_token(self, token: str, audience: str) -> tuple[User, tuple[str, ...]] | None:
        spec = {"token": token, **({"audiences": [audience]} if audience else {})}
        status = await self._review("authentication", "TokenReview", spec)
        user = mapping(status.get("user"))
        if status.get("authenticated") is not True or not (name := _whole(user.get("username"))):
            return None
        extra = {key: _wholes(values) for key, values in mapping(user.get("extra")).items()}
        found = User(
            name, _wholes(user.get("groups")), _whole(user.get("uid")), frontproxy.extra_of(extra)
        )
        return found, _wholes(status.get("audiences"))

    async def _denied(self, user: User, attributes: Document) -> str:
        """Return why a user lacks a right; empty if the user has it."""
        key = repr((user, attributes))

        async def ask() -> str:
            who = {"user": user.name, "groups": user.groups, "uid": user.uid}
            spec = {**who, "extra": dict(user.extra), **attributes}
            status = await self._review("authorization", "SubjectAccessReview", spec)
            if status.get("allowed") is True:
                return "" if status.get("denied") is not True else "Forbidden"
            wanted = next(iter(attributes.values()))
            what = ", ".join(f"{name}={value}" for name, value in wanted.items())
            return f"Forbidden (user={user.name}, {what})"

        return await self._rights.get(key, ask)


def _token_of(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _whole(value: object) -> str:
    """Return an identity from the API server, in full: cut off, it could be another user's."""
    return text(value, MAX_ANSWER_BYTES)


def _wholes(value: object) -> tuple[str, ...]:
    return tuple(texts(value, MAX_ANSWER_BYTES))
