"""Command lines for other hosts (``--host``): what travels with them, and how output is shown.

Files that a command reads or writes are this machine's: small ones are sent with the command,
others are its standard input or output there. All other paths are the host's, such as ``--config``
and certificates.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import typer

from pycrictl.base.config import read_text
from pycrictl.base.environ import ON_HOST
from pycrictl.base.errors import (
    ConfigError,
    ConnectError,
    ExitCode,
    PycrictlError,
    UsageError,
    reason_of,
)
from pycrictl.base.units import plural, quote, quote_path
from pycrictl.cli.command_table import BY_NAME
from pycrictl.hosts import session
from pycrictl.hosts.connection import Ssh, hosts_of
from pycrictl.hosts.session import CREDENTIALS, HostError

if TYPE_CHECKING:
    from pycrictl.base.environ import Environment
    from pycrictl.cli.argv import CommandLine
    from pycrictl.cli.context import AppContext

T = TypeVar("T")

OPTIONS: Final = frozenset("host sudo no_keep program max_parallel_hosts connect_timeout".split())
"""The global options that are not passed on to hosts."""

_OF_CLIENT: Final = ("progress", "quiet", "follow_link")
"""Options of ``cp`` that apply on this machine, not on the host."""


class Travel(NamedTuple):
    """How a command's files travel, and how it shares the terminal; options have no dashes.

    Attributes:
        files: indexes of the positionals that name small files.
        options: options that name a small file.
        input: spellings of an option whose file becomes standard input; its value becomes ``-``.
        output: spellings of an option whose file gets standard output; its value becomes ``-``.
        reads: options that make it read standard input; ``-``: if a source is ``-``; ``*``: always.
        wants: what it needs, for which only a single host is possible; or empty.
        variables: names of environment variables that are sent like files.
    """

    files: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    wants: str = ""
    variables: tuple[str, ...] = ()


TRAVELS: Final[Mapping[str, Travel]] = {
    "attach": Travel(reads=("stdin", "i"), wants="one terminal"),
    # With a local path, see ``host_copying``.
    "cp": Travel(reads=("-",)),
    "create": Travel(files=(1, 2), variables=CREDENTIALS),
    "debug": Travel(reads=("*",), wants="one terminal"),
    "exec": Travel(reads=("interactive", "i")),
    "load": Travel(input=("input", "i"), reads=("*",)),
    "pull": Travel(options=("pod-config",), input=("from",), reads=("u",), variables=CREDENTIALS),
    "run": Travel(files=(0, 1), variables=CREDENTIALS),
    "runp": Travel(files=(0,)),
    "save": Travel(output=("output", "o"), wants="one file to write"),
}
"""The travel of each command with files, input or a need; with all others, nothing travels."""


class _Command(NamedTuple):
    """A command line on its way to hosts.

    Attributes:
        words: the command line there, global options included.
        files: contents of files that are sent, by the indexes of their names in ``words``.
        variables: environment variables with secrets, which are sent with the files.
        input_from: the descriptor that becomes standard input; None if the command reads none.
        output_to: the file that gets standard output; empty for this program's own.
    """

    env: Environment
    ssh: Ssh
    words: list[str]
    files: Sequence[tuple[int, str]] = ()
    variables: Sequence[str] = ()
    input_from: int | None = None
    output_to: str = ""

    def start(self, host: str) -> session.Fields:
        """Return what a host is told to run, after it was sent the files."""
        start = session.start_message(host, [self.env.program, *self.words], self.env.environ)
        if self.files or self.variables:
            content = json.dumps({"files": self.files, "environ": self.variables})
            start["files"] = [self.ssh.put(host, content.encode())]
        return start

    def start_of_several(self, host: str) -> session.Fields:
        """Return what one of several hosts is told: to write records."""
        env, start = self.env, self.start(host)
        start["environ"].append(f"COLUMNS={env.columns or 80}")
        start["terminals"] = ["1"] * env.stdout_is_terminal + ["2"] * env.stderr_is_terminal
        start["records"] = [os.urandom(32).hex()]
        if "events" in self.words:  # events are lines without end
            start["plain"] = [""]
        return start

    def process(
        self, host: str, words: Sequence[str], variables: Sequence[str], stdin: int | None
    ) -> session.Process:
        """Start the command with more words and without a terminal; the error names the host."""
        with _named(host):
            way = self.ssh.reach(host)
            start = self._replace(words=[*self.words, *words]).start(host)
            start["environ"] += variables
            return session.started(way, start, stdin)


def run(
    app: AppContext,
    params: dict[str, Any],
    line: CommandLine,
    words: Sequence[str],
    parse: Callable[[], CommandLine],
) -> int | None:
    """Run a command on the hosts that the options name; return the exit status.

    None means that the command continues here, as ``cp`` and the screen of ``top`` do; the context
    then has what they need for other hosts.

    Args:
        params: the values of the global options; those for the host are removed from them.
        line: the line up to the command.
        words: the command and its arguments, as typed.
        parse: parses the arguments, which takes the time to load the command.
    """
    env = app.env
    if outer := env.environ.get(ON_HOST):
        raise UsageError(
            f"--host within --host: this already runs on {quote(outer)}",
            hint="for a host behind another, write ProxyJump in ssh's configuration",
        )
    global_words = [word for name, word in line.words() if name not in OPTIONS]
    hosts = hosts_of(params["host"], env.environ)
    is_alone = len(hosts) == 1
    ssh = Ssh(
        env.environ,
        params["program"],
        timeout_s=params["connect_timeout"],
        sudo=params["sudo"],
        keeps=not params["no_keep"],
        asks=is_alone,
        note=env.note if is_alone and env.stderr_is_terminal else lambda _: None,
    )
    command = _Command(env, ssh, [*global_words, *words])
    name = BY_NAME[words[0]].name if words[0] in BY_NAME else ""
    if name == "cp" and _is_local(parse().positionals):
        from pycrictl.cli import host_copying  # noqa: PLC0415 - only for cp

        if not is_alone and _is_local(parse().positionals[-1:]):
            raise UsageError("cp needs one host to copy from")
        params |= dict.fromkeys(("config", "runtime_endpoint", "image_endpoint", "host_root"))
        copy = command._replace(words=global_words)
        starts = {host: partial(copy.process, host) for host in hosts}
        handed_on = [w for n, w in parse().words() if n not in _OF_CLIENT]
        app.copies_elsewhere = partial(host_copying.methods, starts, handed_on)
        return None
    if name == "top" and not is_alone and not _typed(parse()) & {"once", "output", "o"}:
        app.top_elsewhere = hosts, partial(ssh.events, hosts, command.start_of_several, len(hosts))
        return None
    travel = TRAVELS.get(name, Travel())
    wants = travel.wants
    if name == "exec" and not is_alone and _typed(parse()) & {"interactive", "tty", "i", "t"}:
        wants = "one terminal"
    if wants and not is_alone:
        raise UsageError(f"{name} needs {wants}, so it takes only one host")
    if travel != Travel():
        command = _with_files(command, travel, parse(), len(global_words) + 1)
    if is_alone:
        return _alone(command, *hosts)
    values = parse().values if name and not BY_NAME[name].subcommands else {}
    return _together(command, hosts, name, values, params["max_parallel_hosts"])


@contextmanager
def _named(host: str) -> Iterator[None]:
    """Name the host in its errors."""
    try:
        yield
    except HostError as exc:
        raise ConnectError(f"{host}: {exc.message}", hint=exc.hint) from None


def _alone(command: _Command, host: str) -> int:
    env = command.env
    has_terminal = env.stdin_is_terminal and env.stdout_is_terminal and env.stderr_is_terminal
    has_terminal = has_terminal and not command.output_to and command.input_from in (0, None)
    with _named(host):
        way, start = command.ssh.reach(host), command.start(host)
        run = partial(session.run, way, start, is_terminal=has_terminal, stdin=command.input_from)
        if not command.output_to:
            return run()
        from pycrictl.base.replacing import replacing  # noqa: PLC0415 - takes time to load

        with replacing(command.output_to) as file:
            if code := run(stdout=file.fileno()):
                raise typer.Exit(code)
        return code


def _together(
    command: _Command,
    hosts: Sequence[str],
    name: str,
    values: Mapping[str, Any],
    most: int,
) -> int:
    from pycrictl.show.merged import Merged, in_order  # noqa: PLC0415 - one host needs none of it

    env = command.env
    if values.get("watch"):
        raise UsageError("--watch takes only one host", hint="'top' shows several")
    strips = name == "logs" and not values.get("timestamps")
    follows = name in ("events", "image-pull-progress") or values.get("follow", False)
    if strips:
        command.words.append("--timestamps")
    most = len(hosts) if follows else most
    with _input(command.input_from) as path, Merged(env, hosts) as merged:
        events = command.ssh.events(hosts, command.start_of_several, most, stdin=path)
        if name == "logs":
            events = in_order(events, strips=strips, follows=follows)
        for event in events:
            merged.show(event)
    failed = [f"{host} ({merged.failed[host]})" for host in hosts if host in merged.failed]
    if failed and name not in ("why", "doctor"):  # their status reports problems
        env.error(f"failed on {len(failed)} of {plural(len(hosts), 'host')}: {', '.join(failed)}")
    return ExitCode.FAILURE if failed else ExitCode.OK


@contextmanager
def _input(descriptor: int | None) -> Iterator[str]:
    """Yield a file with standard input, which each host reads at its own speed."""
    if descriptor is None:
        yield os.devnull
        return
    from tempfile import TemporaryFile  # noqa: PLC0415 - rarely needed

    with TemporaryFile() as spool, open(descriptor, "rb", closefd=False) as source:
        if descriptor == 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            try:
                shutil.copyfileobj(source, spool)
                spool.flush()
            except OSError as exc:
                text = f"cannot keep standard input for several hosts: {reason_of(exc)}"
                raise PycrictlError(text, hint="$TMPDIR names the folder for it") from None
            descriptor = spool.fileno()
        yield f"/proc/self/fd/{descriptor}"


def _with_files(command: _Command, travel: Travel, line: CommandLine, before: int) -> _Command:
    """Return a command with the files of this machine that its line names.

    Args:
        before: the number of words before the command's own words.
    """
    environ, source = command.env.environ, {"-"} & {*line.positionals[:-1]}
    command = command._replace(
        variables=[f"{n}={environ[n]}" for n in travel.variables if n in environ],
        input_from=0 if "*" in travel.reads or (_typed(line) | source) & {*travel.reads} else None,
    )
    names_files = travel.files or travel.options or travel.input or travel.output
    if not names_files or line.positionals[:1] in (["jsonschema"], ["js"]):
        return command
    words, files = command.words[:before], []
    for name, word in line.words():
        typed, (option, _, value) = {*line.spellings[name]}, word.partition("=")
        if typed & {*travel.options}:
            files.append((len(words) + 1, _reading(read_text, value)))
            words += [option, value]
        elif typed & {*travel.input}:
            descriptor = 0 if value == "-" else _reading(os.open, value, os.O_RDONLY | os.O_CLOEXEC)
            command = command._replace(input_from=descriptor)
            words.append(f"{option}=-")
        elif typed & {*travel.output}:
            command = command._replace(output_to="" if value == "-" else value)
            words.append(f"{option}=-")
        else:
            words.append(word)
    words.append("--")
    for place, word in enumerate(line.positionals):
        if place in travel.files:
            files.append((len(words), _reading(read_text, word)))
        words.append(word)
    return command._replace(words=words, files=files)


def _typed(line: CommandLine) -> set[str]:
    """Return how the options of a line were spelled, without switches that are off."""
    return {word for name, words in line.spellings.items() if line.values[name] for word in words}


def _reading(act: Callable[..., T], path: str, *more: Any) -> T:
    """Open or read a file of this machine; the error names it."""
    try:
        return act(path, *more)
    except (OSError, ConfigError) as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read {quote_path(path)}: {reason}") from None


def _is_local(positionals: Sequence[str]) -> bool:
    """Return whether a copy has a local path, and not only the standard streams."""
    from pycrictl.copy.rules.spec import LocalPath, parse_side  # noqa: PLC0415 - only for cp

    sides = [parse_side(word) for word in positionals]
    return any(isinstance(side, LocalPath) and not side.is_stream for side in sides)
