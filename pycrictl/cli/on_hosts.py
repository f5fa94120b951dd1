"""Command lines for other hosts (``--host``): what travels with them, and how output is shown."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from pycrictl.cli.argv import words_of
from pycrictl.cli.command_table import BY_NAME
from pycrictl.cli.host_terminal import run_alone
from pycrictl.cli.host_travel import NOTHING, TRAVELS, Travel
from pycrictl.config import FILE_LIMIT_BYTES
from pycrictl.environ import ON_HOST
from pycrictl.errors import ConfigError, ConnectError, ExitCode, UsageError
from pycrictl.hosts.connection import HostError, Ssh
from pycrictl.hosts.names import Host, hosts_of
from pycrictl.hosts.program import Programs
from pycrictl.hosts.session import Session, start_message
from pycrictl.replacing import replacing
from pycrictl.units import plural, quote

if TYPE_CHECKING:
    from pycrictl.cli.argv import CommandLine
    from pycrictl.cli.context import AppContext
    from pycrictl.environ import Environment

OPTIONS: Final = (*("host", "sudo", "no_keep", "program", "max_parallel_hosts", "connect_timeout"),)
"""The global options that are not handed on to hosts."""

_OF_CLIENT: Final = ("progress", "quiet", "no_clobber", "follow_link")
"""Options of ``cp`` for the end at this machine."""

_DIAGNOSES: Final = ("why", "doctor")
"""Commands whose status tells of problems that were found."""

_ENDLESS: Final = ("image-pull-progress",)
# Without the command's options, which take time to load: letters of a bundle, or the whole name.
_WATCH: Final = re.compile(r"--?watch(=true)?|-[a-z]*w[a-z]*", re.IGNORECASE)
_FOLLOW: Final = re.compile(r"--?follow(=true)?|-[a-z]*f[a-z]*", re.IGNORECASE)
_TIMES: Final = re.compile(r"--?timestamps(=true)?|-[a-z]*t[a-z]*", re.IGNORECASE)


class Request(NamedTuple):
    """A command line on its way to hosts.

    Attributes:
        words: the command line there, global options included.
        files: contents of files that are sent, by their places in ``words``.
        input_from: the descriptor that becomes standard input; None if the command reads none.
        output_to: the file that gets standard output; empty for this program's own.
    """

    words: list[str]
    files: list[tuple[int, bytes]]
    input_from: int | None = None
    output_to: str = ""


def run(
    app: AppContext,
    params: dict[str, Any],
    words: Sequence[str],
    parse: Callable[[], CommandLine],
) -> int | None:
    """Run a command on the hosts that the options name; return the exit status.

    None means that the command goes on here, with what the context has for other hosts: ``cp`` and
    the screen of ``top``.

    Args:
        params: the values of the global options; those for the host are removed from them.
        words: the command and its arguments, as typed.
        parse: parses the arguments, which takes the time to load the command.
    """
    env = app.env
    if outer := env.environ.get(ON_HOST):
        raise UsageError(
            f"--host within --host: this already runs on {quote(outer)}",
            hint="for a host behind another, write ProxyJump in ssh's configuration",
        )
    assert app.global_line is not None
    global_words = [word for name, word in words_of(app.global_line) if name not in OPTIONS]
    hosts = hosts_of(params["host"], env.environ)
    is_alone = len(hosts) == 1
    ssh = Ssh(
        env.environ,
        cache(partial(Programs, params["program"], env.environ)),
        timeout_s=params["connect_timeout"],
        sudo=params["sudo"],
        keeps=not params["no_keep"],
        asks=is_alone,
        note=env.note if is_alone and env.stderr_is_terminal else lambda _: None,
    )
    name = BY_NAME[words[0]].name if words[0] in BY_NAME else ""
    travel = TRAVELS.get(name, NOTHING)
    ask = cache(partial(_ask_password, env))
    if name == "cp" and _is_local(parse().positionals):
        from pycrictl.cli import host_copying  # noqa: PLC0415 - only for cp

        if not is_alone and _is_local(parse().positionals[-1:]):
            raise UsageError("cp needs one host to copy from")
        params |= dict.fromkeys(("config", "runtime_endpoint", "image_endpoint", "host_root"))
        starts = [partial(_start_copy, env, ssh, host, global_words, ask) for host in hosts]
        handed_on = [w for n, w in words_of(parse()) if n not in _OF_CLIENT]
        app.copies_elsewhere = partial(host_copying.methods, starts, handed_on)
        return None
    if name == "top" and not is_alone and not _typed(parse()) & {"once", "output", "o"}:
        from pycrictl.cli.host_boards import HostBoards  # noqa: PLC0415 - only for top
        from pycrictl.top.screen import own_words  # noqa: PLC0415 - the same

        merges = {"stdout": True, "stderr": True, "is_live": True}
        argv = [*global_words, *words]
        start = start_message(env, argv, (), terminals=(False, False, False), merges=merges)
        mine = [word for name, word in words_of(app.global_line) if name not in ("host",)]
        app.boards_elsewhere = HostBoards(ssh, hosts, start, ask, [*own_words(), *mine])
        return None
    request = _request(env, travel, global_words, words, parse)
    if is_alone:
        return _alone(env, ssh, hosts[0], request, ask)
    _require_one_host(name, travel, parse)
    return _together(env, ssh, hosts, request, name, params["max_parallel_hosts"], ask)


def _alone(
    env: Environment, ssh: Ssh, host: Host, request: Request, ask: Callable[[], str | None]
) -> int:
    terminals = [env.stdin_is_terminal, env.stdout_is_terminal, env.stderr_is_terminal]
    if request.input_from not in (0, None):
        terminals[0] = False
    start = start_message(env, request.words, request.files, terminals=terminals)
    try:
        session = Session(ssh, host, start, ask)
        if not request.output_to:
            return run_alone(session, env, input_from=request.input_from, output_to=1)
        with replacing(request.output_to) as file:
            if code := run_alone(session, env, input_from=None, output_to=file.fileno()):
                raise typer.Exit(code)
        return code
    except HostError as exc:
        raise ConnectError(f"{host.label}: {exc.message}", hint=exc.hint) from None


def _together(
    env: Environment,
    ssh: Ssh,
    hosts: Sequence[Host],
    request: Request,
    name: str,
    most: int,
    ask: Callable[[], str | None],
) -> int:
    from pycrictl.hosts.several import Several  # noqa: PLC0415 - one host needs no threads
    from pycrictl.show.merged import Merged  # noqa: PLC0415 - the same

    travel, words = TRAVELS.get(name, NOTHING), list(request.words)
    is_live = "*" in travel.is_live or (bool(travel.is_live) and any(map(_WATCH.fullmatch, words)))
    follows = is_live or name in _ENDLESS
    strips = None
    if travel.merges_times:
        follows = any(map(_FOLLOW.fullmatch, words))
        strips = not any(map(_TIMES.fullmatch, words))
        words += ["--timestamps"] if strips else []
    start = start_message(
        env,
        words,
        request.files,
        terminals=(False, False, False),
        merges={
            "stdout": env.stdout_is_terminal,
            "stderr": env.stderr_is_terminal,
            "is_live": is_live,
        },
    )
    several = Several(
        ssh,
        hosts,
        start,
        most=len(hosts) if follows else most,
        ask=ask,
        input_from=request.input_from,
        strips=strips,
    )
    ends: Mapping[str, int | str] = {}
    with Merged(env, [host.label for host in hosts], is_live=is_live) as merged:
        ends = several.run(merged)
    failed = [f"{host} ({_end(end)})" for host, end in ends.items() if end]
    if failed and name not in _DIAGNOSES:
        env.error(f"failed on {len(failed)} of {plural(len(hosts), 'host')}: {', '.join(failed)}")
    return ExitCode.FAILURE if failed else ExitCode.OK


def _end(end: int | str) -> str:
    return f"status {end}" if isinstance(end, int) else "not reached"


def _request(
    env: Environment,
    travel: Travel,
    global_words: Sequence[str],
    words: Sequence[str],
    parse: Callable[[], CommandLine],
) -> Request:
    """Return what is sent: the command line, with the files of this machine that it names."""
    as_typed = [*global_words, *words]
    input_from = 0 if env.stdin_is_terminal else None
    if travel.reads_input and input_from is None:
        reads = "*" in travel.reads_input or _typed(parse()) & {*travel.reads_input}
        input_from = 0 if reads else None
    if not (travel.files or travel.options or travel.input or travel.output):
        return Request(as_typed, [], input_from)
    line = parse()
    if line.positionals[:1] in (["jsonschema"], ["js"]):
        return Request(as_typed, [], input_from)
    made, files, output_to = as_typed[: len(global_words) + 1], [], ""
    for name, word in words_of(line):
        typed, (option, _, value) = {*line.spellings[name]}, word.partition("=")
        if typed & {*travel.options}:
            files.append((len(made) + 1, _content(value)))
            made += [option, value]
        elif typed & {*travel.input}:
            input_from = 0 if value == "-" else _opened(value)
            made.append(f"{option}=-")
        elif typed & {*travel.output}:
            output_to = "" if value == "-" else value
            made.append(f"{option}=-")
        else:
            made.append(word)
    made.append("--")
    for place, word in enumerate(line.positionals):
        if place in travel.files:
            files.append((len(made), _content(word)))
        made.append(word)
    return Request(made, files, input_from, output_to)


def _start_copy(
    env: Environment,
    ssh: Ssh,
    host: Host,
    global_words: Sequence[str],
    ask: Callable[[], str | None],
    words: Sequence[str],
    variables: Mapping[str, str],
) -> Session:
    argv = [*global_words, words[0], "--progress=json", *words[1:]]
    start = start_message(env, argv, (), terminals=(False, False, False))
    start["environ"] |= variables
    try:
        return Session(ssh, host, start, ask)
    except HostError as exc:
        raise ConnectError(f"{host.label}: {exc.message}", hint=exc.hint) from None


def _require_one_host(name: str, travel: Travel, parse: Callable[[], CommandLine]) -> None:
    wants = travel.wants
    if name == "exec":
        is_open = _typed(parse()) & {"interactive", "tty", "i", "t"}
        wants = "one terminal" if is_open else ""
    if wants:
        raise UsageError(f"{name} needs {wants}, so it takes one host")


def _typed(line: CommandLine) -> set[str]:
    """Return how the options of a line were spelled, without switches that are off."""
    return {word for name, words in line.spellings.items() if line.values[name] for word in words}


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read {quote(path, 4096)}: {reason}") from None


def _content(path: str) -> bytes:
    try:
        with open(_opened(path), "rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read {quote(path, 4096)}: {reason}") from None
    if len(content) > FILE_LIMIT_BYTES:
        raise ConfigError(f"{quote(path, 4096)} is larger than {FILE_LIMIT_BYTES // 1024} KiB")
    return content


def _is_local(positionals: Sequence[str]) -> bool:
    """Return whether a copy has a local path, and not only the standard streams."""
    from pycrictl.copy.rules.spec import LocalPath, parse_side  # noqa: PLC0415 - only for cp

    sides = [parse_side(word) for word in positionals]
    return any(isinstance(side, LocalPath) and not side.is_stream for side in sides)


def _ask_password(env: Environment) -> str | None:
    if not (env.stdin_is_terminal and env.stderr_is_terminal):
        raise ConnectError("sudo needs a password there", hint="run it where a terminal can ask")
    return getpass.getpass("[sudo] password: ", stream=env.stderr)
