"""What is special about ``cp --method rpc`` on the real node; see ``test_cp`` for the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.stream.over_rpc import OverRpc
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import PycrictlError
from pycrictl.proxy import admin
from tests.copy.node.test_on_node import UNWATCHED
from tests.copy.racer import flipping
from tests.copy.trees import listing, stages_in
from tests.proxy.program import Program as Proxy
from tests.waiting import wait_until

from .copying import (
    Cp,
)
from .lab import MIB

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
    play = cp.root / "root/play"
    (folder / "outside/sub").mkdir(parents=True)
    (folder / "local").mkdir()
    for path in ("outside/data", "outside/sub/data"):
        (folder / path).write_text("SECRET OF THE NODE")
    (folder / "data").write_text("from the user")
    (play / "dir/sub").mkdir(parents=True)
    (play / "dir/data").write_text("of the container")
    (play / "dir/sub/data").write_text("of the container")
    (play / "evil").symlink_to(folder / "outside")
    before = listing(folder / "outside")
    ended = {"done": 0, "failed": 0}
    with (
        CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=10) as client,
        flipping(play, "dir", "evil"),
    ):
        rpc = OverRpc(client, cp.id)
        enough_at, number = time.monotonic() + RACE_S, 0
        while (now := time.monotonic()) < enough_at or (
            min(ended.values()) <= 3 and now < enough_at + 60
        ):
            number += 1
            out = bytes(folder / f"local/{number}")
            for attempt in (
                partial(rpc.copy_to, bytes(folder / "data"), b"/root/play/dir/data"),
                partial(rpc.copy_to, bytes(folder / "data"), b"/root/play/dir/sub"),
                partial(rpc.copy_from, b"/root/play/dir/sub", out),
            ):
                try:
                    attempt(Rules(), UNWATCHED)
                    ended["done"] += 1
                except PycrictlError:
                    ended["failed"] += 1
    assert listing(folder / "outside") == before
    stolen = [path for path in (folder / "local").rglob("data") if "SECRET" in path.read_text()]
    assert stolen == []
    assert min(ended.values()) > 3, ended
    assert stages_in(play) == []
