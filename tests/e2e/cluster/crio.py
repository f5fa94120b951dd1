"""A private CRI-O: its configuration, socket, storage and log below one folder."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc

from tests.e2e.node.daemon import Daemon
from tests.e2e.node.kubelet import Kubelet

_WRAPPER = """#!{python} -IS
# Without CAP_SYS_RESOURCE nobody may grant it, nor lower an oom_score_adj.
import json, os, sys
words = sys.argv[1:]
for before, word in zip(words, words[1:]):
    if before in ("-b", "--bundle"):
        path = word + "/config.json"
        with open(path) as file:
            spec = json.load(file)
        spec["process"].pop("oomScoreAdj", None)
        for kind, names in (spec["process"].get("capabilities") or {{}}).items():
            spec["process"]["capabilities"][kind] = [n for n in names if n != "CAP_SYS_RESOURCE"]
        with open(path, "w") as file:
            json.dump(spec, file)
os.execv({runc!r}, ["runc", *words])
"""


class CriO:
    """A context manager that runs CRI-O.

    Args:
        programs: the folder with ``crio`` and ``pinns``.
        folder: the node's folder, with a short path; all files are below it.
        pause: the reference of the image for sandboxes.
        registry: its host and port, for plain HTTP.
    """

    def __init__(self, programs: Path, folder: Path, pause: str, registry: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="crio-", dir=folder))
        self.sockets = self.folder / "run"
        self.sockets.mkdir(parents=True)
        self._write(programs, pause, registry)
        files = {"config": "crio.conf", "config-dir": "none", "registries-conf": "registries.conf"}
        flags = [f"--{key}={self.folder / name}" for key, name in files.items()]
        self._daemon = Daemon([programs / "crio", *flags], self.folder / "crio.log")
        self._channel = grpc.insecure_channel(f"unix://{self.sockets}/crio.sock")
        self.kubelet = Kubelet(self._channel, cgroup_parent=f"/{folder.name}")

    def __enter__(self) -> CriO:
        socket = self.sockets / "crio.sock"
        self._daemon.start(lambda: socket.exists() and self.kubelet.ready(), timeout_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon.running:
            self.kubelet.remove_pods()
        self._channel.close()
        self._daemon.terminate()

    def _write(self, programs: Path, pause: str, registry: str) -> None:
        folder = self.folder
        for name in ("cni", "none", "keys", "logs"):
            (folder / name).mkdir()
        network = {"cniVersion": "0.4.0", "name": "loopback", "plugins": [{"type": "loopback"}]}
        (folder / "cni/10-loopback.conflist").write_text(json.dumps(network))
        (folder / "policy.json").write_text('{"default":[{"type":"insecureAcceptAnything"}]}')
        (folder / "registries.conf").write_text(
            f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n'
        )
        runc = folder / "runc-wrapped"
        path = shutil.which("runc", path="/usr/sbin:/usr/bin:/sbin:/bin")
        runc.write_text(_WRAPPER.format(python=sys.executable, runc=path))
        runc.chmod(0o755)
        tables: dict[str, dict[str, Any]] = {
            "crio": {
                "root": folder / "storage",
                "runroot": folder / "run-storage",
                "storage_driver": "overlay",
                "log_dir": folder / "logs",
                "version_file": folder / "version",
                "clean_shutdown_file": folder / "clean.shutdown",
            },
            "crio.api": {"listen": self.sockets / "crio.sock", "stream_port": "0"},
            "crio.runtime": {
                "conmon_cgroup": "pod",
                "cgroup_manager": "cgroupfs",
                "pinns_path": programs / "pinns",
                "namespaces_dir": folder / "ns",
                "container_exits_dir": folder / "exits",
                "container_attach_socket_dir": folder / "attach",
                "hooks_dir": [],
                "default_runtime": "runc",
                "decryption_keys_path": folder / "keys",
            },
            "crio.runtime.runtimes.runc": {
                "runtime_path": runc,
                "runtime_type": "oci",
                "runtime_root": folder / "runc",
                "monitor_path": shutil.which("conmon") or "",
                "monitor_cgroup": "pod",
            },
            "crio.image": {
                "pause_image": pause,
                "pause_command": "",
                "signature_policy": folder / "policy.json",
                "short_name_mode": "disabled",
            },
            "crio.network": {"network_dir": folder / "cni", "plugin_dirs": ["/usr/lib/cni"]},
            "crio.nri": {"enable_nri": False},
        }
        lines = []
        for name, table in tables.items():
            # Strings, booleans and arrays in JSON are also valid TOML.
            pairs = [f"{key} = {json.dumps(value, default=str)}" for key, value in table.items()]
            lines += [f"[{name}]", *pairs]
        (folder / "crio.conf").write_text("\n".join(lines) + "\n")
