"""Which rooms may import which: an import that is not in the table fails."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pycrictl"


def rows(table: str, *always: str) -> dict[str, set[str]]:
    """Read a table of rooms, each followed by a colon and its allowed imports, plus ``always``.

    Indented lines continue a row; ``pycrictl`` is the package itself.
    """
    found = {}
    for row in re.split(r"\n(?! )", table.strip()):
        room, *names = ("" if name == "pycrictl" else name for name in re.findall(r"[\w.]+", row))
        found[room] = {*names, *always}
    return found


ARROWS: Final = rows(
    # Rooms that all others may import, and rooms that import little.
    """
pycrictl:
errors:
foreign: units
units:
environ: units
servicelog: wire.limits
memory:
metricspage:
signals:
ownprogram:
processes: noderoot
replacing:
tls:
yamltree: units
_proto: _proto
copy:
__main__: cli hosts.remote_end hosts.session ownprogram signals
"""
) | rows(
    """
noderoot:
serviceoptions: config
config: noderoot yamltree
configfile: config noderoot replacing yamltree
wire: wire
cri: _proto config cri noderoot signals wire.codes wire.limits yamltree
containerd: _proto containerd cri.calls.channel cri.calls.errmap noderoot processes wire.codes
logs: logs wire.logline wire.logtime
kube: config environ kube logs.journal noderoot processes servicelog streaming.loop tls yamltree
progress: _proto containerd cri kube.pods progress pulls streaming wire
archives: _proto archives containerd copy.archive.decompress cri.calls.client cri.lists
    progress.reference pulls.state replacing wire.tar
pull: _proto cri noderoot progress pull pulls yamltree
diagnosis: _proto containerd cri diagnosis kube logs noderoot progress pulls tls
streaming: environ signals streaming tls wire
pulls: pulls
pulls.registries: _proto containerd kube.kubelet noderoot processes progress.reference
    pulls.registries tls
progress.crio: _proto containerd.daemon containerd.store cri logs.journal noderoot processes
    progress pulls
copy.rules: copy.rules wire.codes wire.tar
copy.tree: copy.rules copy.tree noderoot signals wire.tar
copy.archive: copy.archive copy.rules copy.tree wire.tar
copy.method: _proto copy cri.lists.lookup
copy.ends: copy.archive copy.method copy.rules copy.tree
copy.transfer: _proto copy.archive copy.method copy.rules copy.transfer copy.tree cri
    streaming.blocking streaming.target wire.limits wire.websocket
copy.on_node: _proto copy.archive copy.method copy.on_node copy.rules copy.tree cri noderoot
copy.service: copy.archive copy.method copy.rules copy.service copy.transfer.flow
    copy.transfer.messages copy.tree streaming.loop
copy.exec: _proto copy.archive copy.exec copy.method copy.rules copy.tree cri signals streaming wire
diagnosis.pod: diagnosis.causes diagnosis.facts diagnosis.findings diagnosis.wording kube.nodes
  kube.workloads
diagnosis.causes: diagnosis.conditions diagnosis.facts diagnosis.findings diagnosis.troubles
diagnosis.conditions: diagnosis.facts diagnosis.troubles kube.kubelet_log progress.failures pulls
diagnosis.wording: diagnosis.conditions diagnosis.facts diagnosis.troubles kube.nodes
    kube.workloads progress.failures progress.reference pulls
diagnosis.node_findings: diagnosis.findings diagnosis.registry
    pulls.registries.registry_client
show: _proto environ pulls show
proxy: _proto containerd.config_toml containerd.daemon copy.rules copy.service copy.tree
    cri.calls.methods kube.events kube.kubelet kube.kubelet_config memory noderoot ownprogram proxy
    pycrictl servicelog pulls.messages serviceoptions signals streaming.loop wire.codes wire.limits
proxy.serve: copy.transfer.messages proxy.events proxy.serve servicelog serviceoptions
    streaming.loop wire.http1 wire.limits wire.upgrade
proxy.pulls: _proto containerd.config_toml cri.calls.client cri.calls.redact kube.kubelet_config
    progress proxy.calls proxy.events proxy.pulls proxy.runtime_lookup proxy.serve.tokens
    proxy.upstream pulls servicelog streaming.loop wire.codes
proxy.copies: _proto copy proxy.calls proxy.copies proxy.events proxy.runtime_lookup
    proxy.serve.tokens servicelog wire.codes
proxy.figures: _proto copy.service.slots cri.calls.methods cri.calls.tracing kube metricspage
    progress.reference proxy pulls pycrictl servicelog streaming.loop wire.codes wire.limits
agent: agent copy.service cri.calls.client kube memory metricspage ownprogram progress pulls
    pycrictl servicelog serviceoptions streaming.loop tls
agent.api: agent.api progress.reference pulls pycrictl
agent.copies: _proto agent copy cri.calls.client kube.pods servicelog wire
kubectl: agent.api.names diagnosis.causes diagnosis.facts diagnosis.findings diagnosis.pod
    kube.kubelet_log kube.nodes kube.pods kube.workloads kubectl logs.journal progress.endings
    progress.failures progress.stream_watch pulls pycrictl streaming
kubectl.copies: agent.api.names copy kubectl.api_errors kubectl.copies kubectl.kubectl_proxy
    kubectl.pod_selection kubectl.program noderoot streaming.blocking streaming.target
cli: _proto agent archives cli config configfile containerd copy cri diagnosis environ hosts kube
    kubectl logs noderoot nsenter progress proxy pull pulls pycrictl replacing servicelog
    serviceoptions show signals streaming top wire
hosts: config hosts pycrictl show.records wire.logtime
nsenter:
top: _proto cri diagnosis progress.pod_pulls pulls top
top.board: diagnosis pulls
top.text: pulls show.displays.phrases top.board
top.screen: show.displays.phrases top.board top.text
""",
    *("errors", "foreign", "units"),
)

THIRD_PARTY: Final = rows(
    """
aiohttp: agent
cryptography: agent.trust.issuing
google: _proto archives containerd cri proxy.copies.copy_service proxy.figures.recorder
    proxy.operators proxy.pulls.limiter proxy.pulls.progress_streams proxy.runtime_lookup show
    top.board_poller
grpc: cri.calls.channel proxy.server proxy.upstream
h11: streaming.opening wire.http1
prometheus_client: metricspage proxy.figures.metrics
rich: top.screen
textual: top.screen
tomli: containerd serviceoptions
tqdm: show.displays.meters
typer: cli
urllib3: kube.apiclient pulls.registries tls
websockets: proxy.serve.stream_server wire.http1 wire.upgrade wire.websocket
yaml: show yamltree
"""
)
"""The rooms that may import each library."""

BESIDE: Final = {"tools", "tests", "benchmarks", "packaging"}
"""Packages of the tree that import this one, and never the other way round."""


def module_name(path: Path) -> str:
    """Return the name below the package: ``cri.client``, and ``""`` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path, *, typing: bool = False) -> set[str]:
    """Return absolute imports at any depth; with ``typing``, also those for type checkers."""
    found: set[str] = set()
    todo: deque[ast.AST] = deque([ast.parse(path.read_text("utf-8"))])
    while todo:
        node = todo.popleft()
        # Before Python 3.11.4, an exception raised inside is wrapped in a group.
        assert not isinstance(node, ast.TryStar), f"except* in {path}"
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            base = node.module or ""
            for alias in node.names:
                inner = PACKAGE.parent.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                found.add(f"{base}.{alias.name}" if is_module else base)
        todo.extend(ast.iter_child_nodes(node))
    return found


@cache
def graph() -> dict[str, set[str]]:
    """Return each module's imports; not computed at import, which every pytest worker does."""
    return {module_name(path): imports_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def rule_of(module: str) -> set[str] | None:
    """Return the row of the most specific name: ``pulls.tracker`` before ``pulls``."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ARROWS[name] for name in names if name in ARROWS), None)


def is_allowed(target: str, row: set[str]) -> bool:
    return any(target == room or (room and target.startswith(f"{room}.")) for room in row)


def forbidden_imports(module: str) -> Iterator[str]:
    row = rule_of(module)
    if row is None:
        yield f"no rule for the room of {module}"
        return
    for name in sorted(graph()[module]):
        top = name.partition(".")[0]
        target = name.removeprefix("pycrictl").removeprefix(".")
        if top == "pycrictl":
            is_fine = target == module or is_allowed(target, row)
        else:
            is_fine = top not in BESIDE and is_allowed(module, THIRD_PARTY.get(top, {module}))
        if not is_fine:
            yield f"{module} -> {target}"


def test_each_module_imports_only_what_its_room_may() -> None:
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
    """Cycles are forbidden inside a room too, and in imports for type checkers only."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        names = imports_of(path, typing=True)
        inner = {name.removeprefix("pycrictl.") for name in names if name.startswith("pycrictl.")}
        found[module_name(path)] = inner - {module_name(path)}
    assert len(found) > 100
    assert not (circle := circle_in(found)), " <- ".join(circle)


def test_all_that_the_table_names_is_there() -> None:
    modules = {module_name(path) for path in PACKAGE.rglob("*.py")}
    rooms = {name.rpartition(".")[0] for name in modules}
    named = {*ARROWS, *(target for row in ARROWS.values() for target in row)}
    assert named - modules - rooms - {""} == set()


def test_no_test_module_imports_another() -> None:
    """What several share is in `tests/support` or in a module of their room."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("tests", "tools", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.match(
            r"\s*from [\w.]*\btest_\w+ import|\s*from (tests|\.)[\w.]* import .*\btest_", line
        )
    ]
    assert not found


def test_a_circle_is_seen() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle_in({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}})) == {"b", "c"}


def test_a_forbidden_arrow_is_seen() -> None:
    assert not is_allowed("cri.calls.client", ARROWS["wire"])
    assert not is_allowed("cri.calls.client", ARROWS["containerd"])
    assert is_allowed("cri.calls.errmap", ARROWS["containerd"])
    assert rule_of("pulls.tracker") == {"pulls", "errors", "foreign", "units"}


def test_the_walk_sees_imports_inside_functions(tmp_path: Path) -> None:
    source = tmp_path / "probe.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import yaml\n"
        "def f():\n    import grpc\n    from pycrictl.cri.lists import lookup\n"
    )
    seen = {"typing", "grpc", "pycrictl.cri.lists.lookup"}
    assert imports_of(source) == seen
    assert imports_of(source, typing=True) == {"yaml", *seen}
