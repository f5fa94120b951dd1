"""Requests about copies, from the front proxy and from other agents: who may, and where they go."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from aiohttp import web

from pycrictl.agent.api.names import COPIES, GROUP_VERSION
from pycrictl.agent.api.status import DEBUGGING_OFF, Refusal, pod_not_found
from pycrictl.agent.cluster import Cluster
from pycrictl.agent.copies.audit import Audit, End
from pycrictl.agent.copies.forwarding import Forwarding, owner_of
from pycrictl.agent.copies.handlers import CopyHandlers, PodOfNode, asked_for
from pycrictl.agent.copies.refusals import RETRY_S, Refused, Unspecified
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import (
    CopyPhase,
    CopySpec,
    Direction,
    Owner,
    Place,
    Session,
)
from pycrictl.agent.trust.access import Access
from pycrictl.agent.trust.frontproxy import User
from pycrictl.kube.pods import Pod

_UNKNOWN: Final = CopySpec(Direction.UNKNOWN, b"")


class CopyRoutes:
    """Answers requests about copies.

    Args:
        access: asks whether a user may.
        cluster: knows pods.
        forwarding: to other nodes.
        node: the name of this one.
        copies: of this node; None if it offers none.
        audit: is told of copies that users may not make.
        is_off: refuse all that are about pods of this node.
    """

    def __init__(
        self,
        access: Access,
        cluster: Cluster,
        forwarding: Forwarding,
        node: str,
        copies: Copies | None,
        audit: Audit,
        *,
        is_off: bool = False,
    ) -> None:
        self._is_off = is_off
        self._access = access
        self._cluster = cluster
        self._forwarding = forwarding
        self._node = node
        self._audit = audit
        self._handlers = CopyHandlers(copies, GROUP_VERSION) if copies is not None else None

    async def answer(
        self,
        request: web.BaseRequest,
        user: User,
        namespace: str,
        name: str,
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        """Answer a user of the API server, which has checked ``pods/containercopies``.

        A copy is as powerful as a program in the container, so the user must be allowed that, too.

        Raises:
            Refusal: it cannot be.
        """
        wanted = {
            "namespace": namespace,
            "verb": "create",
            "resource": "pods",
            "subresource": "exec",
            "name": name,
        }
        owner = Owner(user.name, user.uid)
        try:
            await self._access.require(
                user,
                {"resourceAttributes": wanted},
                f'pods "{name}" is forbidden: User "{user.name}" cannot create resource "pods/exec"'
                f' in API group "" in the namespace "{namespace}", which a copy needs as well',
            )
        except Refusal as exc:
            if request.method == "POST" and not words:
                spec = _UNKNOWN
                with suppress(Refused):
                    _, spec = await asked_for(request)
                self._refused(owner, Place(namespace, name, "", spec.container), spec, exc)
            raise
        pod = await self._pod(namespace, name)
        try:
            if pod.node == self._node:
                return await self._here(request, owner, pod, words, given)
            if not pod.node:
                raise Refused(409, f'pod "{namespace}/{name}" has not been assigned to a node yet')
            return await self._forwarding.answer(
                request, owner, pod.node, pod.host_ip, (namespace, name), words, given
            )
        except Refused as exc:
            raise _refusal(exc, name) from exc

    async def answer_peer(
        self,
        request: web.BaseRequest,
        namespace: str,
        name: str,
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        """Answer another agent, which has checked its user; raises as ``answer``."""
        pod = await self._pod(namespace, name)
        try:
            if pod.node != self._node:
                raise Refused(503, f'pod "{namespace}/{name}" is not on this node')
            return await self._here(request, owner_of(request), pod, words, given)
        except Refused as exc:
            raise _refusal(exc, name) from exc

    def _refused(
        self, owner: Owner, place: Place, spec: CopySpec, why: Refusal | Unspecified
    ) -> None:
        """Leave a line about a copy that its user may not make, or has not specified."""
        session = Session("", owner, place, spec, CopyPhase.FAILED, spec.size_bytes)
        session.fail(why.message, why.code)
        self._audit(session, End.REFUSED)

    async def _pod(self, namespace: str, name: str) -> Pod:
        pod = await self._cluster.pod(namespace, name)
        if pod is None:
            raise pod_not_found(name)
        return pod

    async def _here(
        self,
        request: web.BaseRequest,
        owner: Owner,
        pod: Pod,
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        if self._is_off:
            raise Refused(405, DEBUGGING_OFF)
        if self._handlers is None:
            raise Refused(
                501, f"the agent of node {self._node} offers no copies: it has no --spool-dir"
            )
        containers = tuple(one.container for one in pod.images if not one.is_volume)
        place = PodOfNode(pod.namespace, pod.name, pod.uid, pod.container, containers)
        try:
            return await self._handlers.answer(request, owner, place, words, given)
        except Unspecified as exc:
            self._refused(owner, Place(pod.namespace, pod.name, pod.uid, ""), _UNKNOWN, exc)
            raise


def _refusal(exc: Refused, name: str) -> Refusal:
    retry_after_s = RETRY_S if exc.code == 429 else 0
    return Refusal(exc.code, exc.message, name=name, kind=COPIES, retry_after_s=retry_after_s)
