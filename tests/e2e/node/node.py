"""A private containerd: its own configuration, socket, state and log below one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from .daemon import Daemon
from .kubelet import Kubelet
from .store import Store

_CRI: Final = 'plugins."io.containerd.grpc.v1.cri"'
_UNUSED_PLUGINS: Final = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.native",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
)
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long a busy machine may take to answer
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


class Node:
    """A throwaway containerd. `kubelet` and `store` stay connected to it across restarts.

    Args:
        folder: An existing folder with a short path (a socket's path is limited to 107 bytes);
            its name also names the cgroup of all pods.
        sandbox_image: The reference of the image that pod sandboxes run.
        cri: More keys of containerd's CRI plugin, such as `{"max_concurrent_downloads": 5}`.
            Tables are nested mappings.
    """

    def __init__(
        self, folder: Path, sandbox_image: str, *, cri: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.socket_path = folder / "ctd.sock"
        self.config_path = folder / "config.toml"
        self._sandbox_image = sandbox_image
        self._daemon = Daemon(
            ["containerd", "--config", self.config_path], folder / "containerd.log"
        )
        cni = folder / "cni"
        cni.mkdir()
        network = {"cniVersion": "0.4.0", "name": "loopback", "plugins": [{"type": "loopback"}]}
        (cni / "10-loopback.conflist").write_text(json.dumps(network))
        self.configure(cri or {})
        self._channel = grpc.insecure_channel(self.endpoint, options=_CHANNEL_OPTIONS)
        self.kubelet = Kubelet(self._channel, cgroup_parent=f"/{folder.name}")
        self.store = Store(self._channel)

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def log_path(self) -> Path:
        return self._daemon.log_path

    @property
    def running(self) -> bool:
        return self._daemon.running

    @property
    def pid(self) -> int:
        return self._daemon.pid

    def configure(self, cri: Mapping[str, Any]) -> None:
        """Write containerd's configuration, which takes effect at the next start."""
        settings: dict[str, Any] = {
            # Without CAP_SYS_RESOURCE nobody may lower an oom_score_adj.
            "restrict_oom_score_adj": True,
            # Keeps network namespaces out of the machine's /run/netns.
            "netns_mounts_under_state_dir": True,
            "sandbox_image": self._sandbox_image,
            "cni": {"bin_dir": "/usr/lib/cni", "conf_dir": str(self.folder / "cni")},
            "containerd": {
                "snapshotter": "overlayfs",
                "runtimes": {
                    "runc": {
                        "runtime_type": "io.containerd.runc.v2",
                        "options": {"Root": str(self.folder / "runc")},
                    }
                },
            },
            **cri,
        }
        lines = [
            "version = 2",
            f"root = {_toml(self.folder / 'root')}",
            f"state = {_toml(self.folder / 'state')}",
            f"disabled_plugins = {_toml(_UNUSED_PLUGINS)}",
            "[grpc]",
            f"address = {_toml(self.socket_path)}",
            '[plugins."io.containerd.internal.v1.opt"]',
            f"path = {_toml(self.folder / 'opt')}",
            *_toml_table(_CRI, settings),
        ]
        self.config_path.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self._daemon.start(lambda: self.socket_path.exists() and self.kubelet.ready())

    def stop(self) -> None:
        """Stop containerd as an administrator would; pods, images and leases stay."""
        self._daemon.terminate()

    def kill9(self) -> None:
        """Kill containerd as a crash would: leases and ingests of running pulls stay behind."""
        self._daemon.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self._channel.close()
        self._daemon.terminate()


def _toml(value: Any) -> str:
    # JSON's strings, numbers, booleans and arrays are TOML as well.
    return json.dumps(value, default=str)


def _toml_table(name: str, table: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in plain.items())]
    for key in table.keys() - plain.keys():
        lines += _toml_table(f"{name}.{json.dumps(key)}", table[key])
    return lines
