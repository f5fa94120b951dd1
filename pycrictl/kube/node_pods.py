"""The pods of the node during a run of the program: listed once, then refreshed."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from pycrictl.base.errors import PycrictlError
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.cluster_objects import Node, parse_node
from pycrictl.kube.credential import find_credential
from pycrictl.kube.pods import Pod, list_pods
from pycrictl.node.kubelet import ROOT


class NodePods:
    """The pods of this node.

    If the first call to the API server fails, one line is logged for ``--debug``, and no other call
    is made. Without ``is_allowed`` (``--no-kube``), no call is made. The list is refreshed
    when it is ``refresh_s`` old.
    """

    def __init__(
        self,
        *,
        is_allowed: bool = True,
        root: Path = ROOT,
        timeout_s: float = 1.0,
        refresh_s: float = 5.0,
    ) -> None:
        self._refresh_s = refresh_s
        self.is_from_api = False
        self._api = ApiClient(lambda: find_credential(root), timeout_s=timeout_s)
        self._pods: tuple[Pod, ...] = ()
        self._asked_at = 0.0
        self._is_allowed = is_allowed

    def pods(self) -> tuple[Pod, ...]:
        """Return the pods; a list that is too old is refreshed, or kept if that fails."""
        is_old = self.is_from_api and time.monotonic() - self._asked_at >= self._refresh_s
        if self._is_allowed and (not self._asked_at or is_old):
            try:
                self._pods = list_pods(self._api)
                self.is_from_api = True
            except PycrictlError as exc:  # for example, a token has just been renewed
                _debug("cannot get the pods of the node from the API server: %s", exc.message)
            self._asked_at = time.monotonic()
        return self._pods

    def find(self, namespace: str, name: str, uid: str = "") -> Pod | None:
        """Return the pod of this name or UID; a static pod's UID differs from the kubelet's."""
        for pod in self.pods():
            if (pod.namespace, pod.name) == (namespace, name) or (uid and pod.uid == uid):
                return pod
        return None

    def node(self) -> Node | None:
        """Query the node's own object; None if the API server does not answer."""
        if self.is_from_api:
            try:
                return parse_node(self._api.get(f"/api/v1/nodes/{self._api.node}"), time.time())
            except PycrictlError as exc:
                _debug("cannot get the node from the API server: %s", exc.message)
        return None


def _debug(text: str, *values: object) -> None:
    logging.getLogger("pycrictl.kube").debug(text, *values)
