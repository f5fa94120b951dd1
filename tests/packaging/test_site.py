"""The site: it can be built, has every page, and no link in it is broken."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.site import ROOT, SITE

pytestmark = pytest.mark.debian


def test_it_is_built_without_a_broken_link() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    home = (SITE / "index.html").read_text("utf-8")
    assert 'src="docs/image-pull-progress.svg"' in home
    for page in ("docs/recipes", "docs/install", "docs/proposals", "man/pycrictl-compat.7"):
        assert f'href="{page}.html"' in home
        assert (SITE / f"{page}.html").stat().st_size > 2000
