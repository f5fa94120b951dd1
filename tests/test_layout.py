"""Which packages may import which: each only those before it, and not across a forbidden edge."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pycrictl"

ORDER: Final = (
    "base", "streams", "node", "runtime", "kube", "copy", "pulls", "diagnosis", "show",
    "hosts", "proxy", "cluster", "cli",
)  # fmt: skip
"""A package imports those before it; all import ``_proto``, ``__main__`` imports anything."""


class Edge(NamedTuple):
    """An import that is forbidden, although the order allows it; names are prefixes."""

    importer: str
    imported: str
    reason: str


FORBIDDEN: Final = (
    Edge("streams.wire", "streams", "protocols are pure: bytes in, events out"),
    Edge("copy.rules", "copy", "rules are pure, and the same for every method"),
    Edge("copy.tree", "copy.archive", "a tree does not know what it is packed in"),
    Edge("copy.archive", "copy.transfer", "an archive does not know how it travels"),
    Edge("pulls.state", "pulls", "every source yields it and every reader takes it as it is"),
    Edge("pulls.meter", "pulls.sources", "callers give the time"),
    Edge("pulls.registries", "pulls.sources", "a registry knows no pull"),
    Edge("show", "runtime", "a view shows a document, whoever asked for it"),
    Edge("hosts", "pulls", "no command knows whether it runs on another host"),
    Edge("hosts", "copy", "no command knows whether it runs on another host"),
    Edge("proxy", "show", "a service has no terminal"),
    Edge("proxy", "hosts", "a service has no other hosts"),
    Edge("proxy", "diagnosis", "a service explains nothing"),
    Edge("cluster", "show", "services and kubectl's plugins have no formats of their own"),
    Edge("cluster", "hosts", "a cluster is reached by its API"),
    Edge("cluster", "proxy", "an agent works on nodes without a proxy"),
    Edge("cluster.agent", "diagnosis", "a service explains nothing"),
    Edge("cluster.agent", "cluster.kubectl", "nodes have no kubectl"),
    Edge("cli.completion", "cli.commands", "Tab is quick"),
)

THIRD_PARTY: Final = {
    "aiohttp": ("cluster.agent",),
    "google": ("_proto", "runtime", "proxy", "show", "pulls.archives", "cli.commands.top"),
    "grpc": ("runtime.cri.calls.channel", "proxy.server", "proxy.upstream"),
    "h11": ("streams",),
    "prometheus_client": ("base.metricspage", "proxy.telemetry"),
    "tomli": ("runtime.containerd", "pulls.registries", "cli.commands.proxy"),
    "tqdm": ("show.displays.meters",),
    "typer": ("cli",),
    "urllib3": ("base.tls", "kube.apiclient", "pulls.registries"),
    "websockets": ("streams", "proxy"),
    "yaml": ("show", "base.yamldata"),
}
"""The packages and modules that may import each library."""

BESIDE: Final = {"tools", "tests", "benchmarks", "packaging"}
"""Packages of the tree that import this one, and never the other way round."""


def module_name(path: Path) -> str:
    """Return the name below the package: ``runtime.cri``, and ``""`` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text("utf-8"))


def imports_of(path: Path, *, typing: bool = False) -> set[str]:
    """Return absolute imports at any depth; with ``typing``, also those for type checkers."""
    imports: set[str] = set()
    todo: deque[ast.AST] = deque([parsed(path)])
    while todo:
        node = todo.popleft()
        # Before Python 3.11.4, an exception raised inside is wrapped in a group.
        assert not isinstance(node, ast.TryStar), f"except* in {path}"
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            if node.test.id == "TYPE_CHECKING" and not typing:
                continue
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            base = node.module or ""
            for alias in node.names:
                inner = PACKAGE.parent.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                imports.add(f"{base}.{alias.name}" if is_module else base)
        todo.extend(
            inner for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.expr)
        )
    return imports


@cache
def graph() -> dict[str, set[str]]:
    """Return each module's imports; not computed at import, which every pytest worker does."""
    return {module_name(path): imports_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def is_below(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def obstacle(importer: str, imported: str) -> str:
    """Return why a module may not import another of this program; empty if it may."""
    ours, theirs = importer.partition(".")[0], imported.partition(".")[0]
    if importer == "__main__" or theirs in ("", "_proto"):
        return ""
    if ours not in ORDER or theirs not in ORDER or ORDER.index(theirs) > ORDER.index(ours):
        return "the order"
    for edge in FORBIDDEN:
        is_inside = is_below(edge.importer, edge.imported) and is_below(imported, edge.importer)
        if is_below(importer, edge.importer) and is_below(imported, edge.imported):
            if not is_inside:
                return edge.reason
    return ""


def forbidden_imports(module: str) -> Iterator[str]:
    for name in sorted(graph()[module]):
        top = name.partition(".")[0]
        if top == "pycrictl":
            target = name.removeprefix("pycrictl").removeprefix(".")
            if target != module and (reason := obstacle(module, target)):
                yield f"{module} -> {target}: {reason}"
        elif top in BESIDE or not is_below(module, *THIRD_PARTY.get(top, (module,))):
            yield f"{module} -> {name}"


def test_each_module_imports_only_what_it_may() -> None:
    assert len(graph()) > 100
    bad = [line for module in graph() for line in forbidden_imports(module)]
    assert not bad, "\n".join(bad)


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a cycle, with the first repeated last; or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    """Cycles are forbidden inside a package too, and in imports for type checkers only."""
    cycles = {}
    for path in PACKAGE.rglob("*.py"):
        names = imports_of(path, typing=True)
        inner = {name.removeprefix("pycrictl.") for name in names if name.startswith("pycrictl.")}
        cycles[module_name(path)] = inner - {module_name(path)}
    assert len(cycles) > 100
    assert not (circle := circle_in(cycles)), " <- ".join(circle)


def test_all_that_the_rules_name_is_there() -> None:
    named = {*ORDER, *(name for edge in FORBIDDEN for name in edge[:2])}
    named |= {name for names in THIRD_PARTY.values() for name in names}
    missing = [
        name
        for name in sorted(named)
        if not (path := PACKAGE.joinpath(*name.split("."))).is_dir()
        and not path.with_suffix(".py").exists()
    ]
    assert missing == []
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_no_test_module_imports_another() -> None:
    """What several share is in `tests/support` or in a module of their package."""
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("tests", "tools", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.match(
            r"\s*from [\w.]*\btest_\w+ import|\s*from (tests|\.)[\w.]* import .*\btest_", line
        )
    ]
    assert not lines


def test_a_circle_is_seen() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle_in({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}})) == {"b", "c"}


def test_a_forbidden_import_is_seen() -> None:
    assert obstacle("base.units", "streams.wire.spdy") == "the order"
    assert obstacle("streams.wire.spdy", "streams.loop")
    assert not obstacle("streams.wire.spdy", "streams.wire.channels")
    assert obstacle("proxy.app", "show.render") == "a service has no terminal"
    assert not obstacle("cli.commands.pull", "pulls.state")


def test_the_walk_sees_imports_inside_functions(tmp_path: Path) -> None:
    source = tmp_path / "probe.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import yaml\n"
        "def f():\n    import grpc\n    from pycrictl.runtime.cri.lists import lookup\n"
    )
    seen = {"typing", "grpc", "pycrictl.runtime.cri.lists.lookup"}
    assert imports_of(source) == seen
    assert imports_of(source, typing=True) == {"yaml", *seen}
