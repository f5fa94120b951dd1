"""Libraries are used by their public interfaces."""

from __future__ import annotations

import ast
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from pathlib import Path

from pycrictl.cluster.agent.listener import TLS_BUFFER_BYTES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pycrictl"

EXCEPTIONS = {
    *(("cli/" + name, "_click") for name in ("argv.py", "tree.py", "completion/answer.py")),
    ("cluster/agent/listener.py", "max_size"),
    ("streams/bytestream.py", "max_size"),
    ("cli/commands/cp.py", "max_size"),  # an option of ours
}
"""Modules and what they use; ARCHITECTURE.md has the reasons."""

SWAPPED = {"set_protocol", "set_parser", "max_size"}
"""What changes a library's objects from behind, without an underscore."""

PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_typeshed"}
"""Documented names of the standard library and its stubs."""


def own_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names that a module of ours defines."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


def used_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield attributes, and the parts of imported modules' names and what is imported of them."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))


def test_no_library_is_opened_from_behind() -> None:
    modules = {
        str(path.relative_to(PACKAGE)): [*ast.walk(ast.parse(path.read_text()))]
        for path in PACKAGE.rglob("*.py")
        if "_proto" not in path.parts
    }
    ours = {"_proto", *PUBLIC, *(name for nodes in modules.values() for name in own_names(nodes))}
    names = {
        (module, name)
        for module, nodes in modules.items()
        for name in used_names(nodes)
        if name in SWAPPED or (name[:1] == "_" and name[:2] != "__" and name not in ours)
    }
    assert names == EXCEPTIONS


def test_the_exceptions_have_their_reasons() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for module, name in EXCEPTIONS - {("streams/bytestream.py", "max_size")}:
        assert name in text, (module, name)


def test_what_asyncio_takes_for_a_tls_connection() -> None:
    """If this fails, see how much memory 1,500 idle connections of an agent take."""
    assert SSLProtocol.max_size in (256 * 1024, TLS_BUFFER_BYTES)
