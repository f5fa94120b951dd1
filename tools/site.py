"""Build the site in `build/site`: the README, `docs`, the man pages, and the pages for developers.

    python -m tools.site

Every link in it is checked, without a network: targets inside the site must exist. Needs mkdocs and
mandoc.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build"
SITE: Final = BUILD / "site"

_HOME: Final = "https://github.com/pycrictl/pycrictl"
_FOR_DEVELOPERS: Final = ("CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")
_STYLE: Final = """
.permalink, .permalink:visited { color: inherit; }
.rst-content dl dt { margin-top: 12px; }
.rst-content dl dd { margin: 0 0 6px 24px; line-height: 24px; }
.rst-content pre { overflow-x: auto; font-size: 13px; }
.rst-content pre:not(:has(code)) { padding: 12px; border: 1px solid #e1e4e5; }
.rst-content table td, .rst-content table th { white-space: normal; vertical-align: top; }
.rst-content img { max-width: 100%; }
"""

_BODY: Final = re.compile(r'<div class="manual-text">(.*)</div>\s*<table class="foot">', re.DOTALL)
_SECTION: Final = re.compile(r"</?section[^>]*>")
_HEADING: Final = re.compile(r'<h([12]) class="S[hs]" id="([^"]*)"><a[^>]*>([^<]*)</a></h[12]>')
_PAGE: Final = re.compile(r"(<b>)?\b(pycrictl[\w.-]*)(</b>)?\(([157])\)")


def build(folder: Path) -> None:
    """Write the site.

    Raises:
        subprocess.CalledProcessError: a tool failed; its output has the reason.
    """
    sources = BUILD / "site-sources"
    shutil.rmtree(sources, ignore_errors=True)
    (sources / "man").mkdir(parents=True)
    shutil.copytree(ROOT / "docs", sources / "docs")
    for page in (sources / "docs").glob("*.md"):  # the README is the home page, man pages are HTML
        text = page.read_text("utf-8").replace("(../README.md", "(../index.md")
        page.write_text(re.sub(r"(\(\.\./man/[\w.-]+\.[157])\)", r"\1.md)", text), "utf-8")
    shutil.copy(ROOT / "README.md", sources / "index.md")
    for name in ("CHANGELOG.md", "MAINTAINERS.md", "CODE_OF_CONDUCT.md", *_FOR_DEVELOPERS):
        shutil.copy(ROOT / name, sources)
    for page in _pages():
        (sources / "man" / f"{page.name}.md").write_text(markdown(page), "utf-8")
    (sources / "site.css").write_text(_STYLE)
    configuration = BUILD / "mkdocs.json"
    configuration.write_text(json.dumps(_configuration(sources, folder)))
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    subprocess.run([*mkdocs, "--config-file", str(configuration)], check=True)


def broken_links(folder: Path) -> Iterator[str]:
    """Yield each broken or insecure link of the pages in a folder, with the page's name."""
    pages = {path.resolve(): _Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            where = urlsplit(link)
            if where.scheme or where.netloc:
                if where.scheme not in ("https", "data"):
                    yield f"{path.relative_to(folder.resolve())}: {link}"
                continue
            # The page for a missing path is shown at any path; its links are absolute.
            start = folder if where.path.startswith("/") else path.parent
            target = start.joinpath(unquote(where.path).lstrip("/")) if where.path else path
            target = (target / "index.html" if target.is_dir() else target).resolve()
            ids = pages[target].ids if target in pages else set()
            if not target.exists() or (where.fragment and unquote(where.fragment) not in ids):
                yield f"{path.relative_to(folder.resolve())}: {link}"


def markdown(page: Path) -> str:
    """Return a man page with headings in Markdown, which mkdocs lists, and the rest in HTML."""
    command = ["mandoc", "-T", "html", "-O", "fragment", str(page)]
    html = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = _BODY.search(html)
    if match is None:
        raise ValueError(f"mandoc writes something else by now: {page.name}")
    body = _HEADING.sub(_heading, _SECTION.sub("", match[1]))
    name, _, section = page.name.rpartition(".")
    return f"---\ntitle: {name}\n---\n\n# {name}({section})\n\n{_PAGE.sub(_linked, body)}"


class _Page(HTMLParser):
    """The links of a page, and its targets of links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and value != "#":
                self.links.add(value)


def _pages() -> list[Path]:
    """Return the man pages, the overview first."""
    return sorted((ROOT / "man").glob("*.[157]"), key=lambda path: (path.stem != "pycrictl", path))


def _heading(match: re.Match[str]) -> str:
    title = " ".join(match[3].split())
    return f"\n\n{'#' * (int(match[1]) + 1)} {title} {{#{match[2]}}}\n\n"


def _linked(match: re.Match[str]) -> str:
    name = f"{match[2]}.{match[4]}"
    is_there = (ROOT / "man" / name).exists()
    return f'<a href="{name}.html">{match[2]}({match[4]})</a>' if is_there else match[0]


def _configuration(sources: Path, folder: Path) -> dict[str, object]:
    return {
        "site_name": "pycrictl",
        "repo_url": _HOME,
        "edit_uri": "",
        "docs_dir": str(sources),
        "site_dir": str(folder),
        "use_directory_urls": False,
        "theme": {"name": "readthedocs", "highlightjs": False, "navigation_depth": 2},
        "extra_css": ["site.css"],
        "markdown_extensions": ["attr_list", "tables", "fenced_code"],
        "validation": {"links": {"anchors": "warn", "unrecognized_links": "warn"}},
        "nav": [
            {"Overview": "index.md"},
            {"Install": "docs/install.md"},
            {"Recipes": "docs/recipes.md"},
            {"In a cluster": "docs/cluster.md"},
            {"Differences from crictl": "man/pycrictl-compat.7.md"},
            {"Man pages": [f"man/{page.name}.md" for page in _pages()]},
            {"What the proposals leave open": "docs/proposals.md"},
            {"Changelog": "CHANGELOG.md"},
            {"For developers": ["docs/building.md", *_FOR_DEVELOPERS, "MAINTAINERS.md"]},
        ],
    }


def main() -> int:
    """Build and check the site; return 1 if a link is broken."""
    build(SITE)
    broken = list(broken_links(SITE))
    for line in broken:
        print(f"site: broken link in {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
