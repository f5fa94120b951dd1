"""The endpoint under test, and the pods, containers, images and pulls made there."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final, cast

import grpc

from pycrictl._proto import cri_pb2
from tests.e2e.node.images import File, Image, Layer, Layout, busybox_files, text_file
from tests.e2e.node.kubelet import Kubelet, Pod
from tests.e2e.node.registry import Registry

from .rules import not_implemented

MIB: Final = 1 << 20
OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
)
HELLO: Final = b"hello from the image\n"


class Refused(Exception):
    """A call that was answered with an error."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def name_of(reference: str) -> str:
    return reference.partition("/")[2].rpartition(":")[0]


@dataclass(frozen=True)
class Settings:
    """The endpoint's configuration, as far as rules depend on it."""

    limit: int = 0
    retry_endpoint: str = ""
    retry_s: float = 30.0
    copies_per_pod: int = 0
    copy_size_limit: int = 0
    url_s: float = 60.0
    pace: float = 1.0

    @classmethod
    def of_environment(cls) -> Settings:
        """Read CONFORMANCE_LIMIT and so on."""
        given: dict[str, Any] = {}
        for setting in fields(cls):
            default: Any = setting.default
            if value := os.environ.get(f"CONFORMANCE_{setting.name.upper()}"):
                given[setting.name] = type(default)(value)
        return cls(**given)


@dataclass
class Endpoint:
    """Calls an endpoint, and in the end removes the objects made there."""

    address: str
    registry: Registry
    layout: Layout
    settings: Settings
    cgroup_parent: str = ""
    is_ours: bool = False
    namespace: str = field(default_factory=lambda: f"conformance-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(self.address, options=OPTIONS)
        self.kubelet = Kubelet(self.channel, cgroup_parent=self.cgroup_parent)
        self._pods: list[str] = []
        self._pulled: list[str] = []
        self._published = 0
        self._base: Layer | None = None
        self._shell: str | None = None
        self._seed = 7_000

    # Calls

    def ask(self, name: str, **fields: Any) -> Any:
        try:
            return self.kubelet.ask(name, timeout_s=60, **fields)
        except grpc.RpcError as exc:
            error = cast(grpc.Call, exc)
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                not_implemented(name)
            raise Refused(error.code(), error.details() or "") from None

    def progress_url(self, *, pod: str = "", container: str = "") -> str:
        answer = self.ask("ImagePullProgress", pod_sandbox_id=pod, container_id=container)
        return str(answer.url)

    def copy_to_url(self, container: str, path: str, size: int, checksum: int) -> str:
        given = {"container_id": container, "path": path, "size": size, "checksum": checksum}
        return str(self.ask("CopyToContainer", **given).url)

    def copy_from(self, container: str, path: str) -> Any:
        return self.ask("CopyFromContainer", container_id=container, path=path)

    # Pods and containers

    def pod(self, name: str) -> Pod:
        return self.run_pod(self.kubelet.pod_config(name, namespace=self.namespace))

    def run_pod(self, config: cri_pb2.PodSandboxConfig) -> Pod:
        pod = self.kubelet.run_pod(config)
        self._pods.append(pod.id)
        return pod

    def container(
        self,
        pod: Pod,
        reference: str,
        command: Sequence[str] = ("/bin/sleep", "1000000"),
        *,
        name: str = "main",
        mounts: Sequence[cri_pb2.Mount] = (),
        starts: bool = True,
    ) -> str:
        made = self.kubelet.create_container(pod, reference, command, name=name, mounts=mounts)
        if starts:
            self.kubelet.start_container(made)
        return made

    def stop(self, container: str) -> None:
        self.kubelet.ask("StopContainer", container_id=container)

    # Time

    def pause(self, seconds: float) -> None:
        """Wait for the endpoint to reach a state that cannot be observed."""
        time.sleep(seconds * self.settings.pace)

    def hold(self) -> None:
        self.registry.limit(0)

    def slow(self, bytes_per_s: float) -> None:
        self.registry.limit(bytes_per_s / self.settings.pace)

    # Images

    @property
    def base(self) -> Layer:
        if self._base is None:
            self._base = self.layout.layer([*busybox_files(), *_FILES], level=0)
        return self._base

    @property
    def shell(self) -> str:
        if self._shell is None:
            self._shell = self.publish("shell", [self.base])
            self.pull(self._shell)
        return self._shell

    def layers(self, *sizes: int) -> list[Layer]:
        self._seed += 10
        return self.layout.random_layers(list(sizes), seed=self._seed)

    def publish(self, name: str, layers: Sequence[Layer]) -> str:
        return self.published(name, layers)[0]

    def published(self, name: str, layers: Sequence[Layer]) -> tuple[str, Image]:
        # A name that was pulled before would be present, whatever it refers to now.
        self._published += 1
        full_name = f"{name}-{self._published}-{self.namespace}"
        # The label makes its ID unique: removing it keeps images with the same layers.
        image = self.layout.image(f"{full_name}:1", layers, config={"Labels": {"of": full_name}})
        self.registry.push(self.layout, image)
        reference = f"{self.registry.host}/{image.name}"
        self._pulled.append(reference)
        return reference, image

    def pull(self, reference: str, pod: Pod | None = None) -> str:
        return self.kubelet.pull(reference, pod)

    def clean(self) -> None:
        self.registry.heal()
        self.registry.limit(None)
        for pod in self._pods:
            with suppress(grpc.RpcError):
                self.kubelet.remove_pod(pod)
        for reference in self._pulled:
            with suppress(grpc.RpcError):
                self.kubelet.remove_image(reference)
        self._pods.clear()
        self._pulled.clear()
        self._shell = None


_FILES: Final = (
    File("srv", mode=0o755, is_folder=True),
    File("srv/inner", mode=0o750, is_folder=True),
    text_file("srv/hello", HELLO.decode(), mode=0o640),
    text_file("srv/inner/deep", "deep\n"),
    File("srv/link", mode=0o777, link_to="hello"),
)
"""Files of the base image besides its programs; copies are made of `srv`."""
