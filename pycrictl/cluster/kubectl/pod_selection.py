"""The pods selected on a command line, found by kubectl, which resolves namespaces and kinds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import Denied, PycrictlError, UsageError
from pycrictl.base.foreign import mapping, mappings, text
from pycrictl.base.units import quote
from pycrictl.cluster.agent.api.names import is_name
from pycrictl.cluster.kubectl.program import Kubectl
from pycrictl.kube.pods import Pod, parse_pod

ALL: Final = "--all-namespaces"

_REFRESH_S: Final = 2.0
_OWN_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class Asked(NamedTuple):
    """The command line's selection: pods, or TYPE/NAME of objects that select them, and where."""

    names: tuple[str, ...] = ()
    selector: str = ""
    namespace: str = ""
    is_everywhere: bool = False
    node: str = ""

    def check(self) -> None:
        if self.names and self.selector:
            raise UsageError("name pods or select them with -l, not both")
        if self.names and self.is_everywhere:
            raise UsageError("an object given by name is in one namespace: use -n, not -A")
        if self.namespace and self.is_everywhere:
            raise UsageError("-n and -A exclude each other")
        check_name("namespace", self.namespace)
        check_name("node", self.node)
        for name in self.names:
            if name.startswith("-"):
                raise UsageError(f"invalid pod name: {quote(name)}")


class PodSelection:
    """The selected pods; those of label selectors may change.

    Attributes:
        single: the pod, if one was given by its name.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        asked: Asked,
        namespace: str,
        pods: Sequence[Pod],
        selectors: Sequence[str],
    ) -> None:
        self.namespace = namespace
        self._kubectl = kubectl
        self._asked = asked
        self._selectors = list(selectors)
        self.single = pods[0] if asked.names and not selectors and len(pods) == 1 else None
        self._is_open = not pods and not selectors and not asked.names
        self._known = {(pod.namespace, pod.name) for pod in pods}
        self._strange: set[tuple[str, str]] = set()
        self._listed_at = time.monotonic()

    def has(self, namespace: str, name: str) -> bool:
        """Return whether a pod is selected; a new one may be recognised later by ``find_new``."""
        if self._is_open or (namespace, name) in self._known:
            return True
        if self._selectors:
            self._strange.add((namespace, name))
        return False

    def find_new(self) -> bool:
        """List pods again if unknown ones were seen; return whether any of them is selected."""
        now = time.monotonic()
        if not self._strange - self._known or now - self._listed_at < _REFRESH_S:
            return False
        self._listed_at = now
        before = len(self._known)
        with suppress(PycrictlError):  # the watch continues with the known ones
            listed = _select(self._kubectl, self.namespace, self._selectors, self._asked.node)
            self._known |= {(pod.namespace, pod.name) for pod in _pods(listed)}
        self._strange.clear()
        return len(self._known) > before


def check_name(kind: str, name: str) -> None:
    if name and not is_name(name):
        raise UsageError(f"invalid {kind} name: {quote(name)}")


def find(kubectl: Kubectl, asked: Asked) -> PodSelection:
    asked.check()
    if asked.node:
        with suppress(Denied):  # a user may have the right to see pulls, but not nodes
            kubectl.output("get", f"node/{asked.node}", "--output=name")
    namespace, documents = resolve(kubectl, asked)
    named = [document for document in documents if document.get("kind") == "Pod"]
    selectors = [selector_of(document) for document in documents if document not in named]
    if asked.selector:
        selectors.append(asked.selector)
    pods = _pods(named + _select(kubectl, namespace, selectors, asked.node))
    return PodSelection(kubectl, asked, namespace, pods, selectors)


def resolve(kubectl: Kubectl, asked: Asked) -> tuple[str, list[dict[str, Any]]]:
    """Return the namespace, empty for all, and the objects given by name."""
    if not asked.names:
        is_everywhere = asked.is_everywhere or (asked.node and not asked.namespace)
        return "" if is_everywhere else asked.namespace or namespace_of(kubectl), []
    documents = _documents(kubectl, asked)
    namespaces = (text(mapping(document, "metadata").get("namespace")) for document in documents)
    return next(filter(None, namespaces), ""), documents


def _documents(kubectl: Kubectl, asked: Asked) -> list[dict[str, Any]]:
    words = [name if "/" in name else f"pod/{name}" for name in asked.names]
    if asked.namespace:
        words.append(f"--namespace={asked.namespace}")
    return _items(kubectl.documents("get", *words, "--output=json"))


def _select(
    kubectl: Kubectl, namespace: str, selectors: Iterable[str], node: str
) -> list[dict[str, Any]]:
    documents = []
    for selector in selectors:
        words = [where(namespace), f"--selector={selector}"]
        if node:
            words.append(f"--field-selector=spec.nodeName={node}")
        documents += _items(kubectl.documents("get", "pods", *words, "--output=json"))
    return documents


def where(namespace: str) -> str:
    return f"--namespace={namespace}" if namespace else ALL


def _items(document: Any) -> list[dict[str, Any]]:
    fields = mapping(document)
    items = fields.get("items") if text(fields.get("kind")).endswith("List") else [fields]
    return [item for item in mappings(items) if "metadata" in item]


def namespace_of(kubectl: Kubectl) -> str:
    """Return the namespace of kubectl's context, or of the pod that this runs in."""
    words = ("config", "view", "--minify", "--output=jsonpath={..namespace}")
    try:
        return kubectl.output(*words).decode(errors="replace").strip() or "default"
    except Denied:
        raise
    except PycrictlError:  # no kubeconfig; other errors recur in the next call
        with suppress(OSError):
            return Path(_OWN_NAMESPACE).read_text("utf-8").strip()
        return "default"


def _pods(documents: Iterable[dict[str, Any]]) -> list[Pod]:
    return list(filter(None, map(parse_pod, documents)))


def selector_of(document: dict[str, Any]) -> str:
    """Return the label selector of an object that selects pods."""
    kind = text(document.get("kind")).lower()
    name = f"{kind}/{text(mapping(document, 'metadata').get('name'))}"
    selector = mapping(document, "spec", "selector")
    labels = mapping(selector.get("matchLabels", selector))
    if not labels or "matchExpressions" in selector:
        raise UsageError(
            f"{name} does not select its pods by labels alone",
            hint="name a pod, select pods with -l, or name a deployment, statefulset, daemonset,"
            " replicaset, job or service",
        )
    return ",".join(f"{key}={value}" for key, value in labels.items())
