"""Authenticates and authorizes the front proxy, other agents, and readers of the metrics.

The API server authenticates and authorizes users; then it forwards their requests with a client
certificate of its own, the front proxy's, and the user in headers. It publishes the CA and the
names of the headers in the ConfigMap ``kube-system/extension-apiserver-authentication``. Others
send tokens, which the API server reviews; its reviews of tokens and rights are cached for a short
time, as in the kubelet.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

from aiohttp import web

from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import mapping, parse, text, texts
from pycrictl.cluster.agent.api.names import AUDIENCE, Document, Refusal
from pycrictl.cluster.agent.asyncapi import AsyncApiClient
from pycrictl.cluster.agent.peers import subject_of
from pycrictl.kube.apiclient import MAX_ANSWER_BYTES

CONFIG_NAMESPACE: Final = "kube-system"
CONFIG_NAME: Final = "extension-apiserver-authentication"

_MAX_CHARS: Final = 1 << 20
"""The size limit of a ConfigMap, so that none is cut off."""

TOKEN_S: Final = 120.0
ALLOWED_S: Final = 60.0
DENIED_S: Final = 15.0
"""How long reviews are cached: of valid tokens, of rights that are allowed, and denials of either.
None of these times exceeds the kubelet's (2 m, 5 m, 30 s)."""

MAX_CACHED: Final = 1000
MAX_TOKEN_CHARS: Final = 16 * 1024
MAX_REVIEWS: Final = 16

T = TypeVar("T")


class User(NamedTuple):
    """A user as the API server knows it; ``extra`` is for authorizers."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """The CA of the front proxy's certificate, as PEM, and its headers.

    ``allowed_names`` are common names of its certificate; empty for any. If a request has several
    of ``user_headers``, the first in that list counts; likewise for ``uid_headers``.
    """

    proxy_ca: str = ""
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    uid_headers: tuple[str, ...] = ("X-Remote-Uid",)
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)


class ServerContext(ssl.SSLContext):
    """TLS settings of the agent's port, which verify a client's certificate by ``proxy_ca``."""

    proxy_ca = ""


def parse_trust(document: Document) -> Trust | None:
    """Return the content of the ConfigMap."""
    data = document.get("data")
    if not isinstance(data, dict):
        return None
    allowed = _listed(data.get("requestheader-allowed-names", "[]"))
    proxy_ca = checked(text(data.get("requestheader-client-ca-file"), _MAX_CHARS))
    return Trust(
        # If the names cannot be read, none is allowed, rather than any.
        proxy_ca=proxy_ca if allowed is not None else "",
        allowed_names=allowed or (),
        user_headers=_listed(data.get("requestheader-username-headers")) or (),
        uid_headers=_listed(data.get("requestheader-uid-headers")) or (),
        group_headers=_listed(data.get("requestheader-group-headers")) or (),
        extra_prefixes=_listed(data.get("requestheader-extra-headers-prefix")) or (),
    )


def is_front_proxy(trust: Trust, connection: ssl.SSLObject) -> bool:
    """Return whether the other end of a TLS connection is the front proxy, by its certificate.

    TLS verified the certificate when the connection began; since then, it may have expired, and the
    trusted CA may have changed.
    """
    certificate: dict[str, Any] | None = connection.getpeercert()
    context = connection.context
    if (
        not certificate
        or not isinstance(context, ServerContext)
        or context.proxy_ca != trust.proxy_ca
    ):
        return False
    since_s, until_s = (
        ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter")
    )
    subject = [pair for part in certificate["subject"] for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    is_allowed = not trust.allowed_names or any(name in trust.allowed_names for name in names)
    return is_allowed and since_s <= time.time() <= until_s


def user_of(trust: Trust, headers: Mapping[str, str]) -> User | None:
    """Return the user of a request that the front proxy sent; None if no header names one.

    Each group has its own header, all with the same name. All of them count, as an omitted group
    might be the one that is denied something.
    """
    name = next((headers[key] for key in trust.user_headers if headers.get(key)), "")
    if not name:
        return None
    uid = next((headers[key] for key in trust.uid_headers if headers.get(key)), "")
    wanted = {key.lower() for key in trust.group_headers}
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for key, value in headers.items():
        lower = key.lower()
        if lower in wanted:
            groups.append(value)
        for prefix in trust.extra_prefixes:
            if lower.startswith(prefix.lower()):
                # The API server escapes characters that header names may not have (headerrequest).
                extra.setdefault(unquote(lower[len(prefix) :]), []).append(value)
    return User(name, tuple(groups), uid, extra_of(extra))


class Cache(Generic[T]):
    """Caches answers of the API server; concurrent calls with the same key wait for one answer.

    Args:
        about: what the API server is asked about, for the Refusal if it does not answer.
        keep_s: how long to keep an answer.
    """

    def __init__(self, about: str, keep_s: Callable[[T], float]) -> None:
        self._about = about
        self._keep_s = keep_s
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[T]] = {}

    async def get(self, key: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and kept[0] > now:
            return kept[1]
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

    def __init__(self, api: AsyncApiClient, own_user: Callable[[], str]) -> None:
        self.trust: Trust | None = None
        self.on_authenticated: Callable[[web.BaseRequest], None] = lambda request: None
        self._api = api
        self._own_user = own_user
        self._tokens: Cache[tuple[User, tuple[str, ...]] | None] = Cache(
            "the token", lambda reviewed: DENIED_S if reviewed is None else TOKEN_S
        )
        self._rights: Cache[str] = Cache("rights", lambda why: DENIED_S if why else ALLOWED_S)
        self._slots = asyncio.Semaphore(MAX_REVIEWS)

    def is_front_proxy(self, transport: asyncio.BaseTransport | None) -> bool:
        connection = transport.get_extra_info("ssl_object") if transport is not None else None
        return bool(self.trust and connection and is_front_proxy(self.trust, connection))

    def user(self, request: web.BaseRequest) -> User:
        """Return the user named by the front proxy; refuse requests that it did not send."""
        trust = self.trust
        if trust is None or not self.is_front_proxy(request.transport):
            raise Refusal(401, "Unauthorized")
        user = user_of(trust, request.headers)
        if user is None:
            raise Refusal(401, "Unauthorized")
        self.on_authenticated(request)
        return user

    async def peer(self, request: web.BaseRequest) -> None:
        """Refuse all but other agents."""
        own = self._own_user()
        # A token that does not even claim to be an agent's is not sent to the API server.
        is_claimed = bool(own) and subject_of(_token_of(request)) == own
        reviewed = await self._of_token(request, AUDIENCE) if is_claimed else None
        if reviewed is None or reviewed[0].name != own or AUDIENCE not in reviewed[1]:
            raise Refusal(401, "Unauthorized")
        self.on_authenticated(request)

    async def metrics(self, request: web.BaseRequest) -> None:
        """Refuse all but users with a token and the right to get ``/metrics``."""
        reviewed = await self._of_token(request, "")
        if reviewed is None:
            raise Refusal(401, "Unauthorized")
        wanted = {"verb": "get", "path": "/metrics"}
        if why := await self._denied(reviewed[0], {"nonResourceAttributes": wanted}):
            raise Refusal(403, why)
        self.on_authenticated(request)

    async def require(self, user: User, attributes: Document, why: str) -> None:
        """Refuse a user of the API server who lacks a right; ``why`` is the refusal's message.

        ``attributes`` describe the right, as in a SubjectAccessReview.
        """
        if await self._denied(user, attributes):
            raise Refusal(403, why, name=user.name, kind="users")

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
        reviewed = User(name, _wholes(user.get("groups")), _whole(user.get("uid")), extra_of(extra))
        return reviewed, _wholes(status.get("audiences"))

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
            condition = ", ".join(f"{name}={value}" for name, value in wanted.items())
            return f"Forbidden (user={user.name}, {condition})"

        return await self._rights.get(key, ask)


def _token_of(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _whole(value: object) -> str:
    """Return an identity from the API server, in full: cut off, it could be another user's."""
    return text(value, MAX_ANSWER_BYTES)


def _wholes(value: object) -> tuple[str, ...]:
    return tuple(texts(value, MAX_ANSWER_BYTES))


def extra_of(fields: Mapping[str, Iterable[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((key, tuple(values)) for key, values in fields.items()))


def checked(pem: str) -> str:
    """Return the PEM text of certificates; empty if there are none, or one cannot be read."""
    plain = pem.encode("ascii", "ignore").decode()  # a PEM file may also have other text
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=plain)
    except (ssl.SSLError, ValueError):
        return ""
    return plain


def _listed(value: object) -> tuple[str, ...] | None:
    """Return the strings of a JSON list in a text; None if it is not such a list."""
    try:
        items = parse(text(value, _MAX_CHARS))
    except ValueError:
        return None
    is_list_of_texts = isinstance(items, list) and all(isinstance(item, str) for item in items)
    return tuple(items) if is_list_of_texts else None
