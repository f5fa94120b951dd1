"""Copies between this machine and containers on another host, as archives of ``cp -`` there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

from pycrictl import foreign
from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.rules import spec
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import CopyError, PycrictlError
from pycrictl.hosts.frames import Kind
from pycrictl.hosts.session import PIECE_BYTES, status_of
from pycrictl.units import escape

if TYPE_CHECKING:
    from pycrictl.hosts.session import Session

Start = Callable[[Sequence[str], Mapping[str, str]], "Session"]


class OverHosts:
    """A method of ``copy`` for a container on another host, or one on each of several.

    Args:
        starts: start a command line on each host, with additional variables.
        container: its name there.
        options: words for ``cp`` there.
    """

    name = "host"

    def __init__(self, starts: Sequence[Start], container: str, options: Sequence[str]) -> None:
        self._starts, self._container, self._options = starts, container, options

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        text, kind = spec.take_apart(path), None
        if text.wants_contents or spec.has_wildcards(path):
            kind = SourceKind.ARCHIVE
        words = [*self._options, *(["--follow-link"] if follow else []), "--"]
        (start,) = self._starts
        with closing(start(["cp", *words, self._shown(path), "-"], {})) as session:
            session.send(Kind.INPUT_END)
            end = _End(session, watch, objects=Kind.ERROR)

            def pieces() -> Generator[memoryview, None, None]:
                for content in end.received():
                    watch.on_bytes(len(content))
                    yield memoryview(content)
                end.check()  # before a reader complains of a short archive

            yield Outgoing(pieces, b"." if kind else text.name, end.check, kind=kind)

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        is_single = archive.kind is not SourceKind.ARCHIVE
        variables = {spec.SINGLE_VARIABLE: "1"} if is_single else {}
        words = [*self._options, *(["--no-clobber"] if rules.no_clobber else []), "--"]
        words = ["cp", *words, "-", self._shown(path)]
        with ExitStack() as stack:
            ends = []
            for start in self._starts:
                session = stack.enter_context(closing(start(words, variables)))
                ends.append(_End(session, watch, objects=Kind.OUTPUT))
            threads = [threading.Thread(target=end.drain, daemon=True) for end in ends]
            for thread in threads:
                thread.start()
            for piece in archive.pieces():
                for at in range(0, len(piece), PIECE_BYTES):
                    for end in ends:
                        end.session.put_input(bytes(piece[at : at + PIECE_BYTES]))
                watch.on_bytes(len(piece))
            for end in ends:
                end.session.send(Kind.INPUT_END)
            for thread in threads:
                thread.join()
        failed = []
        for end in ends:
            try:
                end.check()
            except CopyError as exc:
                if len(ends) == 1:
                    raise
                failed.append(f"{end.session.host.label}: {exc.message}")
        if failed:
            raise CopyError("; ".join(failed))
        return ends[0].summary

    def _shown(self, path: bytes) -> str:
        return f"{self._container}:{path.decode(errors='surrogateescape')}"


class _End:
    """The other ``cp``: entries that it left out, its sums, its error.

    ``objects`` is the stream that has them as JSON lines.
    """

    def __init__(self, session: Session, watch: Watch, *, objects: Kind) -> None:
        self.session, self.summary = session, Summary()
        self._watch, self._objects = watch, objects
        self._rest = {Kind.OUTPUT: b"", Kind.ERROR: b""}
        self._lines: list[str] = []
        self._status: int | None = None
        self._failure = "the copy broke off"

    def received(self) -> Iterator[bytes]:
        """Yield its standard output unless that has the objects, until it has ended."""
        for kind, content in self.session.frames():
            if kind is Kind.OUTPUT and kind is not self._objects:
                yield content
            elif kind is Kind.EXIT:
                self._status = status_of(content)
            elif kind in self._rest:
                *lines, self._rest[kind] = (self._rest[kind] + content).split(b"\n")
                for line in lines:
                    self._take(line, is_object=kind is self._objects)

    def drain(self) -> None:
        try:
            for _ in self.received():
                pass
        except (PycrictlError, OSError, ValueError) as exc:
            self._failure = f"the copy broke off: {exc}"
            self.session.close()

    def check(self) -> None:
        """Raise the error of the other ``cp``, unless it has only left something out."""
        if self._status is None:
            raise CopyError(self._failure)
        if self._status and not self.summary.skipped:
            hints = [line.removeprefix("hint: ") for line in self._lines if line[:6] == "hint: "]
            lines = [line for line in self._lines if line[:6] != "hint: "]
            message = (lines or [f"cp ended with status {self._status}"])[-1]
            raise CopyError(message.removeprefix("pycrictl: "), hint=hints[-1] if hints else None)

    def _take(self, line: bytes, *, is_object: bool) -> None:
        found = foreign.parsed(line) if is_object else {}
        if isinstance(path := found.get("skipped"), str):
            reason = str(found.get("reason", ""))
            self._watch.on_skip(Skipped(path.encode(errors="surrogateescape"), "", reason))
        elif "files" in found:
            counts = {field.name: found.get(field.name) for field in fields(Summary)}
            numbers = {name: count for name, count in counts.items() if isinstance(count, int)}
            self.summary = Summary(**numbers)
        elif not found:
            self._lines = [*self._lines, escape(line.decode(errors="replace"))][-2:]


@contextmanager
def methods(
    starts: Sequence[Start],
    options: Sequence[str],
    container: spec.ContainerPath,
    _watch: Watch,
) -> Iterator[list[OverHosts]]:
    """Yield the method for a container of the same name on each host."""
    name = "/".join(filter(None, (container.pod, container.container)))
    yield [OverHosts(starts, name, options)]
