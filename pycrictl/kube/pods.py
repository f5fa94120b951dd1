"""The pods of this node: their images, their waiting reasons, their pull secrets.

With a kubelet's credential, the API server lists only the pods of its own node (``spec.nodeName``).
Manifests of static pods are the second source; they contain no status. Documents are untrusted:
parts without the expected shape are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl.errors import ConfigError, RemoteProtocolError
from pycrictl.foreign import mapping, mappings, moment, text
from pycrictl.kube.kubelet import ROOT, Kubelet, below, configuration, read_document

if TYPE_CHECKING:
    from pycrictl.kube.apiclient import ApiClient

MANIFESTS: Final = (
    "/etc/kubernetes/manifests",
    "/var/lib/rancher/k3s/agent/pod-manifests",
    "/var/lib/rancher/rke2/agent/pod-manifests",
)
MAX_MANIFESTS: Final = 1000

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
EPHEMERAL: Final = "ephemeralContainers"
_LISTS: Final = (
    ("initContainers", "initContainerStatuses"),
    ("containers", "containerStatuses"),
    (EPHEMERAL, "ephemeralContainerStatuses"),
)


class PodImage(NamedTuple):
    """An image that a pod needs.

    Attributes:
        container: the container's name, or the volume's.
        reason: why the container is waiting (``ErrImagePull``, ``ImagePullBackOff`` …).
        has_started: the container runs or has run, so its image is present.
        is_due: the kubelet pulls it as soon as it can; False behind an unfinished init container.
        is_ready: the result of its probes; None if unknown, or if it cannot have any.
        is_ephemeral: ``kubectl debug`` added it to the running pod.
    """

    container: str
    image: str
    reason: str = ""
    message: str = ""
    has_started: bool = False
    is_due: bool = True
    is_volume: bool = False
    is_ready: bool | None = None
    is_ephemeral: bool = False


class Pod(NamedTuple):
    """A pod of this node.

    Attributes:
        uid: empty for a static pod known from its manifest.
        images: in the order in which the kubelet pulls them.
        reason, message: why the kubelet ended it, such as ``Evicted``.
        node, host_ip: empty until they are set.
        created: RFC 3339.
        container: name of the default container.
        status_s: when the kubelet last wrote the status (Unix time); 0 if it has not.
    """

    namespace: str
    name: str
    uid: str
    phase: str
    images: tuple[PodImage, ...]
    pull_secrets: tuple[str, ...]
    reason: str = ""
    message: str = ""
    node: str = ""
    host_ip: str = ""
    created: str = ""
    container: str = ""
    status_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def created_s(self) -> float:
        return moment(self.created)


def list_pods(client: ApiClient) -> tuple[Pod, ...]:
    answer = client.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={client.node}"})
    if not isinstance(answer, dict):
        raise RemoteProtocolError("the API server did not return a list of pods")
    return tuple(filter(None, map(parse_pod, mappings(answer.get("items")))))


def static_pods(kubelet: Kubelet, node: str, root: Path = ROOT) -> tuple[Pod, ...]:
    """Return the pods in the kubelet's manifests, with the node's name appended to theirs."""
    settings = configuration(kubelet, root)
    named = kubelet.manifests or settings.get("staticPodPath")
    for folder in (named,) if isinstance(named, str) and named else MANIFESTS:
        if found := tuple(_manifests(folder, node, root)):
            return found
    return ()


def parse_pod(document: Mapping[str, Any]) -> Pod | None:
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    status = mapping(document.get("status"))
    if not (name := text(metadata.get("name"))):
        return None
    images: list[PodImage] = []
    is_due = True
    for key, status_key in _LISTS:
        statuses = {text(one.get("name")): one for one in mappings(status.get(status_key))}
        for one in mappings(spec.get(key)):
            container = text(one.get("name"))
            state = mapping(statuses.get(container, {}).get("state"))
            waiting = mapping(state.get("waiting"))
            images.append(
                PodImage(
                    container,
                    text(one.get("image")),
                    text(waiting.get("reason")),
                    text(waiting.get("message")),
                    has_started="running" in state or "terminated" in state,
                    is_due=is_due or key == EPHEMERAL,
                    is_ready=readiness(key, one, statuses.get(container, {})),
                    is_ephemeral=key == EPHEMERAL,
                )
            )
            is_due &= key != "initContainers" or _lets_others_begin(one, state)
    for volume in mappings(spec.get("volumes")):
        if reference := text(mapping(volume.get("image")).get("reference")):
            has_run = status.get("phase") in ("Running", "Succeeded")
            name_of_volume = text(volume.get("name"))
            images.append(PodImage(name_of_volume, reference, has_started=has_run, is_volume=True))
    return Pod(
        text(metadata.get("namespace")) or "default",
        name,
        text(metadata.get("uid")),
        text(status.get("phase")),
        tuple(one for one in images if one.image),
        tuple(
            secret
            for one in mappings(spec.get("imagePullSecrets"))
            if (secret := text(one.get("name")))
        ),
        text(status.get("reason")),
        text(status.get("message")),
        text(spec.get("nodeName")),
        text(status.get("hostIP")),
        text(metadata.get("creationTimestamp")),
        _default_container(metadata, spec),
        _status_s(metadata),
    )


def _lets_others_begin(spec: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return whether the containers after an init container may begin: it has ended, or stays."""
    if spec.get("restartPolicy") == "Always":
        return "running" in state or "terminated" in state
    return mapping(state.get("terminated")).get("exitCode") == 0


def _status_s(metadata: Mapping[str, Any]) -> float:
    writers = mappings(metadata.get("managedFields"))
    times = [moment(one.get("time")) for one in writers if one.get("subresource") == "status"]
    return max(times, default=0.0)


def readiness(key: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool | None:
    """Return ``ready`` of a container in the list ``key`` if it can have probes.

    The kubelet never sets it for ephemeral containers, and for init containers only at their end
    unless they are sidecars.
    """
    ready, has_probes = status.get("ready"), key == "containers"
    has_probes |= spec.get("restartPolicy") == "Always"
    return ready if isinstance(ready, bool) and has_probes else None


def _default_container(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    names = [text(one.get("name")) for one in mappings(spec.get("containers"))]
    named = text(mapping(metadata.get("annotations")).get(_DEFAULT_CONTAINER))
    return named if named in names else next(iter(names), "")


def _manifests(folder: str, node: str, root: Path) -> Iterator[Pod]:
    try:
        names = sorted(entry.name for entry in below(root, folder).iterdir())
    except OSError:
        return
    for name in names[:MAX_MANIFESTS]:
        if name.startswith(".") or not name.endswith(_SUFFIXES):
            continue
        with suppress(OSError, ConfigError):
            pod = parse_pod(read_document(f"{folder}/{name}", root))
            if pod is not None:
                yield pod._replace(name=f"{pod.name}-{node}", uid="", phase="")
