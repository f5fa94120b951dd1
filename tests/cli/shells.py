"""Real shells that complete lines as if a user typed them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
FOLDER: Final = ROOT / "completions"
BASH_COMPLETION: Final = "/usr/share/bash-completion/bash_completion"

LIMIT_S: Final = 120.0  # a playground starts on a busy machine
SHOW: Final = "\a"
"""The key that prints the current line and clears it."""

_COLUMNS: Final = 200


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of the shells; ``home/bin`` comes first in PATH."""
    return {
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        # The tests are about the candidates, not about the speed of a busy machine.
        "PYCRICTL_COMPLETION_TIMEOUT": "50s",
        **more,
    }


def install_program(home: Path, name: str = "pycrictl", *, remembers: bool = False) -> None:
    """Install a script that runs this tree; if it ``remembers``, it caches answers by arguments."""
    path = home / "bin" / name
    path.parent.mkdir(exist_ok=True)
    words = [sys.executable, "-P", "-m", "pycrictl"]
    run = f'env PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join(words)} "$@"'
    script = f"exec {run}"
    if remembers:
        key = "$(printf '%s\\n' \"$@\" | cksum | tr ' ' _)"
        script = f'answer="$0.{key}"; [ -e "$answer" ] || {run} > "$answer"; cat "$answer"'
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


class Shell:
    def __init__(self, words: Sequence[str], home: Path, env: Mapping[str, str]) -> None:
        self.terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 500, _COLUMNS, 0, 0))
        # setsid makes this the controlling terminal; without one, shells complain.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=home,
            env=dict(env),
        )
        os.close(theirs)

    def run(self, script: str) -> str:
        """Run a line to its end; return its output, including the echoed line."""
        self.type(f"{script}; echo rea''dy\n")
        return self.read(rb"(.*)ready\r?\n")[1].decode()

    def complete(self, line: str, keys: str = "\t") -> str:
        return self.press(line, keys)[1]

    def press(self, line: str, keys: str) -> tuple[str, str]:
        """Type a line and keys; return what is shown below the line, and the resulting line."""
        self.type(f"{line}{keys}{SHOW}")
        match = self.read(rb"(.*)<<([^\r\n]*)>>")
        return match[1].decode(), match[2].decode()

    def hang_up(self) -> None:
        os.close(self.terminal)
        self.terminal = -1

    def close(self) -> None:
        if self.terminal >= 0:
            self.hang_up()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=LIMIT_S)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def read(self, pattern: bytes) -> re.Match[bytes]:
        output = b""
        ends_at = time.monotonic() + LIMIT_S
        while (left_s := ends_at - time.monotonic()) > 0:
            if select.select([self.terminal], [], [], left_s)[0]:
                output += os.read(self.terminal, 65536)
                if match := re.search(pattern, output, re.DOTALL):
                    return match
        raise TimeoutError(output)


@contextmanager
def bash(
    home: Path, env: Mapping[str, str], *, script: Path | None = None, with_package: bool = False
) -> Iterator[Shell]:
    """Bash with the script, and optionally with the package bash-completion."""
    shell = Shell(["bash", "--norc", "--noprofile", "-i"], home, env)
    try:
        if with_package:
            shell.run(f"source {BASH_COMPLETION}")
        shell.run(f"source {shlex.quote(str(script or FOLDER / 'pycrictl.bash'))}")
        shell.run("bind 'set completion-query-items 0'; bind 'set page-completions off'")
        show = '"\\C-g": printf "<""<%s>"">\\n" "$READLINE_LINE"; READLINE_LINE='
        shell.run(f"PS1=; bind -x {shlex.quote(show)}")
        yield shell
    finally:
        shell.close()


@contextmanager
def zsh(home: Path, env: Mapping[str, str], *, folder: Path = FOLDER) -> Iterator[Shell]:
    shell = Shell(["zsh", "-f", "-i"], home, env)
    try:
        shell.run("PS1=; setopt no_auto_menu no_list_ambiguous no_beep; LISTMAX=9999")
        shell.run(
            f"fpath=({shlex.quote(str(folder))} $fpath); autoload -U compinit; compinit -u -D"
        )
        shell.run("show() { zle -I; print -r -- '<''<'$BUFFER'>''>'; BUFFER= }; zle -N show")
        shell.run("bindkey '^G' show; bindkey '^I' complete-word")
        yield shell
    finally:
        shell.close()


def fish(
    home: Path, env: Mapping[str, str], lines: Sequence[str], *, script: Path | None = None
) -> list[dict[str, str]]:
    """Return fish's candidates for each line, with their descriptions."""
    source = script or FOLDER / "pycrictl.fish"
    program = "source $argv[1]; for line in $argv[2..]; echo ==; complete -C $line; end"
    result = subprocess.run(
        ["fish", "--no-config", "-c", program, str(source), *lines],
        cwd=home,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert result.stderr == ""
    blocks = result.stdout.split("==\n")[1:]
    return [
        {word: text for word, _, text in (line.partition("\t") for line in block.splitlines())}
        for block in blocks
    ]
