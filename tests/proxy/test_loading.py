"""The proxy loads its modules before it serves: later they may be those of a newer version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakecri import FakeServer
from tests.proxy.copier import Copier, Pretended
from tests.proxy.program import Program
from tests.proxy.pulls.test_limiter import Gate, prepare, status
from tests.proxy.pulls.test_progress_streams import WEB, ask, read, sandboxes
from tests.waiting import wait_until


def test_nothing_is_loaded_once_it_has_settled(
    fake: FakeServer,
    start: Callable[..., Program],
    container: Pretended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    gate = Gate()
    prepare(fake, gate)
    fake.offer("ListPodSandbox", sandboxes)
    proxy = start("--max-parallel-image-pulls=1")

    def loaded() -> list[str]:
        lines = [line for line in proxy.log().splitlines() if line.startswith("import time:")]
        names = [line.rpartition("|")[2].strip() for line in lines]
        return [name for name in names if name.startswith("pycrictl.proxy")]

    before = len(loaded())
    waiting = [proxy.kubelet.start_pull(f"a:{number}", WEB) for number in range(2)]
    wait_until(lambda: len(status(proxy)["waiting"]) == 1)
    url = ask(proxy, WEB.id)
    gate.open.set()
    assert read(url)[-1].phase == "done"
    assert [pull.exception(60) for pull in waiting] == [None, None]
    copier = Copier(proxy)
    (tmp_path / "f").write_text("1")
    copier.into(tmp_path / "f", "/to")
    copier.out("/to", tmp_path / "back")
    copier.wait_until_idle()
    assert loaded()[before:] == []
