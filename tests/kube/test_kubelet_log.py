"""Lines of the journal about one pod."""

from __future__ import annotations

from pycrictl.kube.kubelet_log import MOST_LINES, about
from pycrictl.node.journal import JournalLine

SANDBOX = (
    'level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:web,Uid:u1,Namespace:shop,'
    'Attempt:0,} failed, error" error="no"'
)
KUBELET = '"Error syncing pod, skipping" err="x" pod="shop/side" podUID="u2"'
LINES = [
    JournalLine(1.0, "containerd", SANDBOX),
    JournalLine(2.0, "kubelet", KUBELET),
    JournalLine(3.0, "containerd", 'msg="StopContainer for c0ffee" '),
]


def test_a_pods_own_lines() -> None:
    assert [line.at_s for line in about(LINES, "shop", "web", "", ())] == [1.0]
    assert [line.at_s for line in about(LINES, "shop", "side", "", ("", "c0ffee"))] == [2.0, 3.0]
    assert [line.at_s for line in about(LINES, "shop", "x", "u2", ())] == [2.0]
    assert about(LINES, "other", "web", "", ("",)) == ()
    assert len(about(LINES[:1] * 1000, "shop", "web", "", ())) == MOST_LINES
