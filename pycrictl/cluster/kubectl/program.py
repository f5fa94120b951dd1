"""kubectl itself: one-shot calls, with the connection options of one command line."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Final

from pycrictl.base.errors import ConnectError, NotFound, PycrictlError, RemoteProtocolError
from pycrictl.base.foreign import parse
from pycrictl.cluster.kubectl import api_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "kubectl"

_REPEATED: Final = re.compile(r"[EF]\d{4} \d\d:\d\d:\d\d\.|\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ")
"""Matches lines of kubectl's log, which repeat its answer or its last line."""

_MOST_LINES: Final = 100


class Kubectl:
    def __init__(self, options: Sequence[str], note: Callable[[str], None]) -> None:
        self._options = list(options)
        self.note = note

    def output(self, *words: str) -> bytes:
        errors: list[str] = []
        with self.start(words) as process:
            try:
                output, said = process.communicate()
            except BaseException:
                process.kill()
                raise
        self._read(BytesIO(said), errors)
        if process.returncode:
            raise api_errors.of_text("\n".join(errors), process.returncode)
        return output

    def documents(self, *words: str) -> Any:
        try:
            return parse(self.output(*words))
        except ValueError:
            raise RemoteProtocolError(f"kubectl {words[0]} did not write JSON") from None

    def why_not_served(self) -> PycrictlError:
        """Return why the API server does not serve the agents' API, or not all of it."""
        try:
            self.documents("get", "--raw", api_errors.OFFERED_AT)
        except NotFound:
            return api_errors.not_installed()
        except PycrictlError as exc:
            return exc
        return api_errors.other_version()

    def start(self, words: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start a call; its outputs are pipes."""
        command = [NAME, *words, *self._options]
        try:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings
            )
        except FileNotFoundError:
            raise ConnectError(
                "kubectl is not installed, or not on PATH",
                hint="see https://kubernetes.io/docs/tasks/tools/",
            ) from None
        except OSError as exc:
            raise ConnectError(f"cannot run kubectl: {(exc.strerror or '').lower()}") from exc

    @contextmanager
    def listening(self, process: subprocess.Popen[bytes]) -> Iterator[Callable[[], str]]:
        """Read the standard error of a running call, and pass its notes on."""
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=self._read, args=(process.stderr, errors), daemon=True)
        reader.start()

        def complaint() -> str:
            reader.join(1.0)  # a child process of kubectl may hold the pipe open
            return "\n".join(errors)

        try:
            yield complaint
        finally:
            reader.join(1.0)

    def _read(self, stream: IO[bytes], errors: list[str]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                if api_errors.is_error(line):
                    errors.append(line)
                    del errors[:-_MOST_LINES]
                elif line and not _REPEATED.match(line):
                    self.note(line)
