"""What is special about ``cp --method rpc`` on the real node; see ``test_cp`` for the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.cri.calls.client import CriClient
from pycrictl.proxy import admin
from tests.proxy.program import Program as Proxy
from tests.waiting import wait_until

from .copying import Cp
from .lab import MIB
from .racing import race

Containers = Callable[[str], Cp]
RACE_S = 2


def test_the_memory_of_the_proxy(containers: Containers, proxy: Proxy, folder: Path) -> None:
    cp = containers("rpc")
    for number in range(20):
        (folder / f"tree/{number}").mkdir(parents=True)
        for inner in range(50):
            (folder / f"tree/{number}/{inner}").write_bytes(b"%d" % number * 1365)
    (folder / "tree/large").write_bytes(os.urandom(64 * MIB))
    logged = proxy.log().count("end=done")
    before = proxy.peak_bytes()
    cp.ok(folder / "tree", "C:/root")
    cp.ok("C:/root/tree", folder / "back")
    assert proxy.peak_bytes() - before < 32 * MIB  # for the names of the files too
    assert (folder / "back/large").read_bytes() == (folder / "tree/large").read_bytes()
    assert sum(len(names) for _, _, names in os.walk(folder / "back")) == 1_001
    # The client may have its answer first.
    wait_until(lambda: proxy.log().count("end=done") >= logged + 2)
    wait_until(lambda: not admin.ask(str(proxy.admin_path), "status", timeout_s=10)["copies"])
    assert proxy.log().count("end=done") == logged + 2


def test_what_the_call_cannot_carry_goes_another_way(containers: Containers, folder: Path) -> None:
    cp = containers("rpc")
    (folder / "f").write_text("1")
    os.utime(folder / "f", (0, 0))
    assert "cannot keep" in cp.refused("-a", folder / "f", "C:/tmp/f")
    assert not (cp.root / "tmp/f").exists()
    replace(cp, method="auto").ok("-a", folder / "f", "C:/tmp/f")
    assert (cp.root / "tmp/f").stat().st_mtime == 0


def test_no_escape_while_a_component_is_exchanged(containers: Containers, folder: Path) -> None:
    cp = containers("rpc")
    with CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=10) as client:
        method = OverRpc(client, cp.id)
        race(method, cp.root / "root/play", "/root/play", folder, at_least_s=RACE_S)
