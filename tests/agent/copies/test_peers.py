"""What one agent asks another about copies."""

from __future__ import annotations

from pathlib import Path

from pycrictl.agent.copies.forwarding import OWNER, owner_header
from pycrictl.agent.copies.session import Owner
from tests.agent.standing import Cluster

COPIES = "/node/v1alpha1/namespaces/default/pods/web/containercopies"


def test_the_body_is_read_once_it_is_known_who_asks(cluster: Cluster, node: Path) -> None:
    headers = {OWNER: owner_header(Owner("jane")), "Authorization": f"Bearer {cluster.token}"}
    for body, why in ((b"[" * 60_000, "the object is not JSON"), (b"[" * 70_000, "too large")):
        found = cluster.ask(COPIES, method="POST", body=body, headers=headers)
        assert why in found.document["message"]
