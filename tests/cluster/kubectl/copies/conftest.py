from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.kubectl.copies.workstation import Workstation
from tests.fakecri.server import FakeServer
from tests.proxy.copier import pretended


@pytest.fixture
def work(fake: FakeServer) -> Iterator[Workstation]:
    with (
        tempfile.TemporaryDirectory(prefix="cc-", dir="/var/tmp") as folder,
        pretended(fake, Path(folder, "root")) as container,
        closing(Workstation(Path(folder), container, fake.path)) as work,
    ):
        work.start()
        yield work
