"""A kubelet's journal for the throwaway node, and pods of its API server."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pycrictl.node import journal
from tests.e2e.node.lab import Lab
from tests.kube.apiserver import ApiServer

read_journal = partial(journal.read, timeout_s=20)
"""Reads the journal with a long timeout, as ``journalctl`` may be slow to start."""


def add_pod(api: ApiServer, name: str, *images: str, waiting: str = "ContainerCreating") -> None:
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    state = {"waiting": {"reason": waiting, "message": "no"}}
    statuses = [{"name": container["name"], "state": state} for container in containers]
    api.pods["items"].append(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"nodeName": "n1", "containers": containers},
            "status": {"phase": "Pending", "containerStatuses": statuses},
        }
    )


def write_journal(lab: Lab, folder: Path) -> None:
    """Write a journalctl that prints what the throwaway containerd logs from now on."""
    folder.mkdir()
    program = folder / "journalctl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, re, datetime\n"
        f"log = open({str(lab.node.log_path)!r})\n"
        f"log.seek({lab.node.log_path.stat().st_size})\n"
        "for line in log:\n"
        '    stamp = re.match(r\'time="([^"]+)"\', line)\n'
        "    if stamp:\n"
        "        at = datetime.datetime.fromisoformat(stamp[1][:26].rstrip('Z') + '+00:00')\n"
        "        print(json.dumps({'__REALTIME_TIMESTAMP': str(int(at.timestamp() * 1e6)),\n"
        "              '_SYSTEMD_UNIT': 'containerd.service', 'MESSAGE': line.rstrip()}))\n"
    )
    program.chmod(0o755)
