"""The whole throwaway node: containerd, and a registry behind a throttle, in one folder."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from .images import Image, Layer, Layout, busybox_files
from .kubelet import Pod
from .node import Node
from .registry import Registry
from .sweep import start_janitor, sweep

MIB: Final = 1024 * 1024


class Lab:
    """A context manager that starts everything and leaves no process, mount or file behind."""

    registry: Registry
    node: Node
    layout: Layout
    base: Layer
    pause: Image
    busybox: Image

    def __init__(self, *, cri: Mapping[str, Any] | None = None) -> None:
        self._cri = dict(cri or {})
        self._seeds = itertools.count(1_000_000, 100)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        # /var/tmp: on disk, and short enough for a unix socket's 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="pcn-", dir="/var/tmp"))
        self.folder.chmod(0o711)  # a user namespace's root must reach its file system below it
        self._janitor = start_janitor(self.folder)
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def image(self, name: str, *sizes_bytes: int) -> Image:
        """Make an image of busybox and of layers that no other image has."""
        layers = self.layout.random_layers(sizes_bytes, seed=next(self._seeds))
        return self.layout.image(name, [self.base, *layers])

    def push(self, image: Image) -> str:
        self.registry.push(self.layout, image)
        return self.reference(image)

    def reference(self, image: Image) -> str:
        return f"{self.registry.host}/{image.name}"

    def reference_by_digest(self, image: Image) -> str:
        repository = image.name.rpartition(":")[0]
        return f"{self.registry.host}/{repository}@{image.digest}"

    def container(
        self, pod: Pod, command: Sequence[str] = ("sleep", "1000000"), **more: Any
    ) -> str:
        """Start a container of busybox; `more` goes to `Kubelet.create_container`."""
        kubelet, reference = self.node.kubelet, self.reference(self.busybox)
        kubelet.pull(reference)
        made = kubelet.create_container(pod, reference, command, **more)
        kubelet.start_container(made)
        return made

    def serve_as(self, *hosts: str) -> None:
        mirror = {"endpoint": [f"http://{self.registry.host}"]}
        self.node.configure({"registry": {"mirrors": dict.fromkeys(hosts, mirror)}})
        self.node.restart()

    def clean(self) -> None:
        """Restore the state on entry: healed, no pods, one image, no unfinished pull."""
        self.registry.heal()
        self.registry.limit(None)
        if not self.node.running:
            self.node.start()
        self.node.kubelet.remove_pods()
        for image in self.node.kubelet.images():
            if self.reference(self.pause) not in image.repo_tags:
                self.node.kubelet.remove_image(image.id)
        self.node.store.clear_unfinished()
        self.node.store.collect_garbage()

    def _start(self) -> None:
        self.registry = self._stack.enter_context(Registry(self.folder / "registry"))
        self.layout = Layout(self.folder / "layout")
        self.base = self.layout.layer(busybox_files(), level=0)
        self.pause = self.layout.image(
            "pause:1", [self.base], config={"Entrypoint": ["/bin/sleep", "1000000"], "Cmd": []}
        )
        self.busybox = self.layout.image("busybox:1", [self.base])
        self.push(self.pause)
        self.push(self.busybox)
        self.node = Node(self.folder, self.reference(self.pause), cri=self._cri)
        self.node.start()
        self.node.kubelet.pull(self.reference(self.pause))

    def _end(self) -> None:
        if "node" in vars(self):
            self.node.close()
        self._stack.close()
        sweep(self.folder)
        self._janitor.communicate()
