"""A few rounds of ``restarts``."""

from __future__ import annotations

from tools.torture.restarts import node


def test_kubelet_does_not_notice() -> None:
    with node(0.1) as found:
        for way in (found.reload, found.failed_upgrade, found.restart, found.kill):
            assert way() == []
        assert "Traceback" not in found.program.log()
