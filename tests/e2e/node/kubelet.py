"""What kubelet does to a node, as raw CRI calls: independent of the client under test."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2

RUNTIME: Final = "/runtime.v1.RuntimeService/"
IMAGE: Final = "/runtime.v1.ImageService/"
_METHODS: Final = {
    method.name: method
    for service in cri_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_AT_ONCE: Final = 4
"""How many pods are removed at a time."""
_REMOVED_S: Final = 10.0
"""How long the removal of a pod is tried."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Pod:
    """A running pod sandbox and the config it was made from (PullImage wants it again)."""

    id: str
    config: cri_pb2.PodSandboxConfig


class Kubelet:
    """The caller's side of the CRI on an open channel. Errors are plain `grpc.RpcError`.

    `cgroup_parent` is the cgroup that all pods are put into.
    """

    def __init__(self, channel: grpc.Channel, *, cgroup_parent: str) -> None:
        self._channel = channel
        self._cgroup_parent = cgroup_parent
        self._attempts = itertools.count()

    def call(
        self, method: str, request: Message, response_type: type[M], *, timeout_s: float = 100.0
    ) -> M:
        response: M = self._method(method, response_type)(request, timeout=timeout_s)
        return response

    def ask(self, name: str, *, timeout_s: float = 100.0, **fields: Any) -> Any:
        """One RPC by its name, with a request of these fields."""
        method = _METHODS[name]
        request = getattr(cri_pb2, method.input_type.name)(**fields)
        answer = getattr(cri_pb2, method.output_type.name)
        path = f"/{method.containing_service.full_name}/{name}"
        return self.call(path, request, answer, timeout_s=timeout_s)

    def pid(self, container_id: str) -> int:
        answer = self.ask("ContainerStatus", container_id=container_id, verbose=True)
        return int(json.loads(answer.info["info"])["pid"])

    def state(self, container_id: str) -> int:
        state: int = self.ask("ContainerStatus", container_id=container_id).status.state
        return state

    def run(self, container_id: str, *words: str) -> str:
        """What a command writes that ends well in a container."""
        answer = self.ask("ExecSync", container_id=container_id, cmd=words, timeout=30)
        assert answer.exit_code == 0, answer.stderr
        output: bytes = answer.stdout
        return output.decode()

    def ready(self, *, timeout_s: float = 1.0) -> bool:
        try:
            answer = self.ask("Status", timeout_s=timeout_s)
        except grpc.RpcError:
            return False
        ready = {condition.type for condition in answer.status.conditions if condition.status}
        return ready >= {"RuntimeReady", "NetworkReady"}  # other ones are the runtime's own

    # Pods and containers

    def pod_config(
        self,
        name: str,
        *,
        namespace: str = "default",
        uid: str = "",
        **fields: Any,
    ) -> cri_pb2.PodSandboxConfig:
        """A config on the host's network (a CNI without addresses allows no other)."""
        host_network = cri_pb2.NamespaceOption(network=cri_pb2.NODE)
        return cri_pb2.PodSandboxConfig(
            metadata=cri_pb2.PodSandboxMetadata(
                name=name, namespace=namespace, uid=uid or str(uuid.uuid4())
            ),
            linux=cri_pb2.LinuxPodSandboxConfig(
                cgroup_parent=self._cgroup_parent,
                security_context=cri_pb2.LinuxSandboxSecurityContext(
                    namespace_options=host_network
                ),
            ),
            **fields,
        )

    def run_pod(self, config: cri_pb2.PodSandboxConfig | str) -> Pod:
        if isinstance(config, str):
            config = self.pod_config(config)
        answer = self.ask("RunPodSandbox", config=config)
        return Pod(answer.pod_sandbox_id, config)

    def create_container(
        self,
        pod: Pod,
        image: str,
        command: Sequence[str] = ("sleep", "1000000"),
        *,
        name: str = "main",
        attempt: int | None = None,
        memory_bytes: int = 0,
        more: cri_pb2.ContainerConfig | None = None,
        **fields: Any,
    ) -> str:
        config = cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(
                name=name, attempt=next(self._attempts) if attempt is None else attempt
            ),
            image=cri_pb2.ImageSpec(image=image),
            command=command,
            linux=cri_pb2.LinuxContainerConfig(
                resources=cri_pb2.LinuxContainerResources(memory_limit_in_bytes=memory_bytes),
                security_context=cri_pb2.LinuxContainerSecurityContext(
                    namespace_options=pod.config.linux.security_context.namespace_options
                ),
            ),
            **fields,
        )
        if more is not None:
            config.MergeFrom(more)
        answer = self.ask(
            "CreateContainer", pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config
        )
        return str(answer.container_id)

    def start_container(self, container_id: str) -> None:
        self.ask("StartContainer", container_id=container_id)

    def remove_container(self, container_id: str) -> None:
        self.ask("RemoveContainer", container_id=container_id)

    def running_containers(self) -> list[str]:
        state = cri_pb2.ContainerStateValue(state=cri_pb2.CONTAINER_RUNNING)
        answer = self.ask("ListContainers", filter=cri_pb2.ContainerFilter(state=state))
        return [container.id for container in answer.containers]

    def remove_pods(self) -> None:
        pods = self.ask("ListPodSandbox")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.remove_pod, [pod.id for pod in pods.items]))

    def remove_pod(self, pod_id: str) -> None:
        give_up_at = time.monotonic() + _REMOVED_S
        while True:
            try:
                self._stop_and_remove(pod_id)
                return
            except grpc.RpcError:  # containerd can do neither with what starts or ends right now
                if time.monotonic() > give_up_at:
                    raise
            time.sleep(0.1)

    def _stop_and_remove(self, pod_id: str) -> None:
        self.ask("StopPodSandbox", pod_sandbox_id=pod_id)
        self.ask("RemovePodSandbox", pod_sandbox_id=pod_id)

    # Images

    def start_pull(
        self,
        reference: str,
        pod: Pod | None = None,
        *,
        auth: cri_pb2.AuthConfig | None = None,
        timeout_s: float = 300.0,
    ) -> grpc.Future[cri_pb2.PullImageResponse]:
        """Starts PullImage in the background, for `pod` if given; `.cancel()` is a kubelet gone."""
        request = cri_pb2.PullImageRequest(
            image=cri_pb2.ImageSpec(image=reference),
            auth=auth,
            sandbox_config=pod.config if pod else None,
        )
        method = self._method(IMAGE + "PullImage", cri_pb2.PullImageResponse)
        return method.future(request, timeout=timeout_s)

    def pull(self, reference: str, pod: Pod | None = None, **more: Any) -> str:
        return self.start_pull(reference, pod, **more).result().image_ref

    def images(self) -> list[cri_pb2.Image]:
        answer = self.ask("ListImages")
        return list(answer.images)

    def remove_image(self, reference_or_id: str) -> None:
        self.ask("RemoveImage", image=cri_pb2.ImageSpec(image=reference_or_id))

    def _method(
        self, path: str, response_type: type[M]
    ) -> grpc.UnaryUnaryMultiCallable[Message, M]:
        return self._channel.unary_unary(
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
