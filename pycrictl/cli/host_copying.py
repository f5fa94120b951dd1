"""Copies between this machine and containers on another host, as archives of ``cp -`` there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

from pycrictl.base import foreign
from pycrictl.base.errors import CopyError, PycrictlError
from pycrictl.base.output import write_pieces
from pycrictl.base.units import escape
from pycrictl.copy.archive.archives import Archive, Outgoing
from pycrictl.copy.rules import spec
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.tree.walk import Watch
from pycrictl.hosts.session import HostError

if TYPE_CHECKING:
    from pycrictl.hosts.session import Process

Start = Callable[[Sequence[str], Sequence[str], int | None], "Process"]
"""Starts a command line on a host, with more environment variables and maybe standard input."""


class OverHosts:
    """A method of ``copy`` for a container on another host, or on each of several hosts.

    Args:
        starts: the functions that start a command line, by host.
        container: the container's name on the hosts.
        options: further arguments of ``cp`` on the hosts.
    """

    name = "host"

    def __init__(self, starts: Mapping[str, Start], container: str, options: Sequence[str]) -> None:
        self._starts, self._container = starts, container
        self._words = ["cp", "--progress=json", *options]

    @contextmanager
    def read(self, path: bytes, rules: Rules, watch: Watch) -> Iterator[Outgoing]:
        text, kind = spec.take_apart(path), None
        if text.wants_contents or spec.has_wildcards(path):
            kind = SourceKind.ARCHIVE
        words = [*self._words, *(["--follow-link"] if rules.follow else []), "--"]
        (start,) = self._starts.values()
        with closing(start([*words, self._shown(path), "-"], (), None)) as process:
            end = _End(process, watch)

            def pieces() -> Generator[memoryview, None, None]:
                for content in end.received(is_archive=True):
                    watch.on_bytes(len(content))
                    yield memoryview(content)
                end.check()  # before a reader complains of a short archive

            yield Outgoing(pieces, b"." if kind else text.name, end.check, kind=kind)

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Send it to one host after the other: they share this machine's network."""
        failed: dict[str, str] = {}
        for host, start in self._starts.items():
            try:
                summary = self._written(start, archive, path, watch)
            except PycrictlError as exc:
                if len(self._starts) == 1:
                    raise
                failed[host] = exc.message.removeprefix(f"{host}: ")
        if failed:
            raise CopyError("; ".join(f"{host}: {reason}" for host, reason in failed.items()))
        return summary

    def _written(self, start: Start, archive: Archive, path: bytes, watch: Watch) -> Summary:
        is_single = archive.kind is not SourceKind.ARCHIVE
        variables = [f"{spec.SINGLE_VARIABLE}=1"] if is_single else []
        words = [*self._words, "--", "-", self._shown(path)]
        there, here = os.pipe()
        with os.fdopen(there, "rb") as source, os.fdopen(here, "wb", 0) as pipe:
            with closing(start(words, variables, there)) as process:
                source.close()
                end = _End(process, watch)
                reader = threading.Thread(target=end.drain, daemon=True)
                reader.start()
                for piece in archive.pieces():
                    try:
                        write_pieces(here, [piece])
                    except OSError:  # the other end has stopped reading, and reports why
                        break
                    watch.on_bytes(len(piece))
                pipe.close()
                reader.join()
                end.check()
        return end.summary

    def _shown(self, path: bytes) -> str:
        return f"{self._container}:{path.decode(errors='surrogateescape')}"


class _End:
    """The output of the other ``cp``: skipped entries and sums as JSON lines, and its error."""

    def __init__(self, process: Process, watch: Watch) -> None:
        self.process, self.summary = process, Summary()
        self._watch = watch
        self._lines: list[str] = []

    def received(self, *, is_archive: bool) -> Iterator[bytes]:
        """Take lines of both outputs; yield standard output instead if it is the archive."""
        rest = {False: b"", True: b""}
        for is_error, data in self.process.pieces():
            if is_archive and not is_error:
                yield data
            else:
                *lines, rest[is_error] = (rest[is_error] + data).split(b"\n")
                for line in lines:
                    self._on_line(line)

    def drain(self) -> None:
        for _ in self.received(is_archive=False):
            pass

    def check(self) -> None:
        """Raise the error of the other ``cp``, unless it has only left something out."""
        try:
            status = self.process.result()
        except HostError as exc:
            raise CopyError(f"the copy broke off: {exc.message}") from None
        if status and not self.summary.skipped:
            hints = [line.removeprefix("hint: ") for line in self._lines if line[:6] == "hint: "]
            lines = [line for line in self._lines if line[:6] != "hint: "]
            message = (lines or [f"cp ended with status {status}"])[-1]
            raise CopyError(message.removeprefix("pycrictl: "), hint=hints[-1] if hints else None)

    def _on_line(self, line: bytes) -> None:
        message = foreign.parsed(line) if line[:1] == b"{" else {}
        if isinstance(path := message.get("skipped"), str):
            reason = str(message.get("reason", ""))
            self._watch.on_skip(Skipped(path.encode(errors="surrogateescape"), "", reason))
        elif "files" in message:
            counts = {field.name: message.get(field.name) for field in fields(Summary)}
            numbers = {name: count for name, count in counts.items() if isinstance(count, int)}
            self.summary = Summary(**numbers)
        elif not message:
            self._lines = [*self._lines, escape(line.decode(errors="replace"))][-2:]


@contextmanager
def methods(
    starts: Mapping[str, Start],
    options: Sequence[str],
    container: spec.ContainerPath,
    _watch: Watch,
) -> Iterator[list[OverHosts]]:
    """Yield the method for a container of the same name on each host."""
    name = "/".join(filter(None, (container.pod, container.container)))
    yield [OverHosts(starts, name, options)]
