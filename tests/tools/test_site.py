"""The site's man pages have headings and links, and no link of a page leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

from tools import site

ROOT = Path(__file__).parents[2]


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "man").mkdir()
    (tmp_path / "man" / "b.html").write_text('<h2 id="x">X</h2><a href="../a.html#y">y</a>')
    good = '<a id="y" href="man/b.html#x">x</a> <a href="https://h/">h</a> <img src="man/b.html">'
    page = tmp_path / "a.html"
    page.write_text(good)
    assert list(site.broken_links(tmp_path)) == []
    bad = ["man/c.html", "man/b.html#y", "#nowhere", "http://h/", "/a/b.html"]
    page.write_text(good + "".join(f'<a href="{link}">it</a>' for link in bad))
    assert list(site.broken_links(tmp_path)) == [f"a.html: {link}" for link in sorted(bad)]


def test_a_man_page_keeps_its_sections_and_names_its_neighbours() -> None:
    page = ROOT / "man" / "pycrictl-cp.1"
    text = site.markdown(page)
    sections = re.findall(r'^\.SH "(.*)"$', page.read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"^## (.*) \{#\S+\}$", text, re.MULTILINE) == sections
    assert '<a href="pycrictl-compat.7.html">pycrictl-compat(7)</a>' in text
