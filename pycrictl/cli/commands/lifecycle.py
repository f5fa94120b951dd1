"""``start``, ``stop``, ``rm``, ``update`` and ``checkpoint``; ``stopp``, ``rmp`` and ``rmi``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from pycrictl.base.errors import UsageError
from pycrictl.base.units import SHORT_ID_CHARS, format_size, parse_int, plural, quote_path
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext, Results
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.redact import redact_text
from pycrictl.runtime.cri.lifecycle.control import every, in_turn, remove
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.images import find_images, remove_images, unused_images
from pycrictl.runtime.cri.lists.lookup import Kind, ObjectRef

_NOUNS: Final = {"container": "container", "pod": "pod sandbox"}


def start(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.created_containers)] = None,
) -> None:
    """Start created containers.

    Starts them in order; if one fails, the others are still started. Prints each ID or name as
    given. Reports on stderr what each name resolved to.

    Example: pycrictl start $(pycrictl ps -aq --state created)
    """
    _act(ctx.obj, "container", containers, "StartContainer")


def stop(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.running_containers)] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Stop all running containers.")] = False,
    timeout: Annotated[
        int,
        options.int_option(
            "--timeout", "-t", help="Seconds from the stop signal to SIGKILL; 0 kills immediately."
        ),
    ] = 0,
) -> None:
    """Stop running containers.

    Stops them in order; if one fails, the others are still stopped. Prints each ID or name as
    given. Reports on stderr what each name resolved to.

    Example: pycrictl stop --timeout 10 web
    """
    app: AppContext = ctx.obj
    if all_ and containers:
        raise UsageError("--all and IDs cannot be combined")
    if timeout < 0:
        raise UsageError("--timeout must not be negative")
    _act(app, "container", containers, "StopContainer", all_running=all_, timeout=timeout)


def stopp(ctx: typer.Context, pods: options.PodIds = None) -> None:
    """Stop running pod sandboxes.

    Their containers are stopped as well. Stops the pods in order; if one fails, the others are
    still stopped. Reports on stderr what each name resolved to.

    Example: pycrictl stopp default/web
    """
    _act(ctx.obj, "pod", pods, "StopPodSandbox", "Stopped sandbox {}")


def rm(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.containers)] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Remove all containers.")] = False,
    force: options.Force = False,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", "-k", help="Keep the log files on this host.")
    ] = False,
) -> None:
    """Remove containers.

    Removes them in parallel; if one fails, the others are still removed. Prints each ID or
    name as given, twice if it had to be stopped first. Log files on this host are removed with
    their container. Reports on stderr what each name resolved to.

    Example: pycrictl rm $(pycrictl ps -aq --state exited)
    """
    _remove(ctx.obj, "container", containers, is_all=all_, force=force, keep_logs=keep_logs)


def rmp(
    ctx: typer.Context,
    pods: options.PodIds = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Remove all pod sandboxes.")] = False,
    force: options.Force = False,
) -> None:
    """Remove pod sandboxes and their containers.

    Removes them in parallel; if one fails, the others are still removed. Reports on stderr what
    each name resolved to.

    Example: pycrictl rmp $(pycrictl pods -q --state notready)
    """
    _remove(ctx.obj, "pod", pods, is_all=all_, force=force)


def rmi(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE...", autocompletion=complete.images, help="Names, digests or IDs."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Remove all images.")] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            "-q",
            help="Remove images that are not pinned and not used by containers or pod sandboxes.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
) -> None:
    """Remove images.

    Removes them in parallel, each with all its tags; if one fails, the others are still removed.
    Reports on stderr how much --prune frees; layers shared with other images stay, so the actual
    gain may be smaller.

    Example: pycrictl rmi --prune --dry-run
    """
    app: AppContext = ctx.obj
    if all_ and prune:
        raise UsageError("--all and --prune cannot be combined")
    if images and (all_ or prune):
        flag, selection = ("--all", "all images") if all_ else ("--prune (-q)", "all unused images")
        if not app.persona.is_crictl:
            hint = f"to remove only the images that are named, leave out {flag}"
            raise UsageError(f"{flag} with images would remove {selection} as well", hint=hint)
        app.env.warn(f"{flag} removes {selection} in addition to those that are named")
    targets = [] if not images and (all_ or prune) else options.some_named(images, "image")
    results = Results(app)
    with ExitStack() as stack:
        client = stack.enter_context(app.open_client("image"))
        if all_:
            targets += [image.id for image in lookup.images(client)]
        elif prune:
            runtime = stack.enter_context(app.open_runtime_beside(client))
            targets += unused_images(runtime, client, lookup.images(client))
        removals = find_images(client, targets)
        for entry in removals:
            if tags := ", ".join(entry.other_tags):
                app.env.warn(f"{redact_text(entry.target)} is removed with all its tags: {tags}")
        freed = []
        verb = "Would delete" if dry_run else "Deleted"
        for entry in removals if dry_run else remove_images(client, removals):
            if entry.error is not None:
                results.fail(entry.error)
            else:
                results.say(f"{verb}: {name}" for name in entry.names)
                freed.append(entry.size_bytes)
    if not targets:
        app.env.note("no images to remove")
    elif dry_run or (prune and not app.persona.is_crictl):
        verb = "would free" if dry_run else "freed"
        app.env.note(f"{verb} up to {format_size(sum(freed))}: {plural(len(freed), 'image')}")
    results.finish()


def _act(
    app: AppContext,
    kind: Kind,
    given: list[str] | None,
    call: str,
    said: str = "{}",
    *,
    all_running: bool = False,
    **request: Any,
) -> None:
    """Make a call for each container or pod sandbox, and print its ID."""
    words = [] if all_running else options.some_named(given, _NOUNS[kind])
    results = Results(app)
    with app.open_client("runtime") as client:
        targets = (
            every(client, kind, running=True) if all_running else _targets(app, client, kind, words)
        )
        for outcome in in_turn(client, call, targets, **request):
            if outcome.error is None:
                results.say([said.format(outcome.target)])
            else:
                results.fail(outcome.error)
    if not targets:
        results.say(["No running containers found."])
    results.finish()


def _targets(app: AppContext, client: CriClient, kind: Kind, words: list[str]) -> list[ObjectRef]:
    """Resolve words, and report what names stand for."""
    refs = lookup.targets(client, words, kind, as_typed=app.persona.is_crictl)
    for ref in refs:
        if ref.name:
            app.env.note(f"{ref.text} is {kind} {ref.id[:SHORT_ID_CHARS]} ({ref.name})")
    return refs


def _remove(
    app: AppContext,
    kind: Kind,
    given: list[str] | None,
    *,
    is_all: bool,
    force: bool,
    keep_logs: bool = False,
) -> None:
    if is_all and given:
        raise UsageError("--all and IDs cannot be combined")
    words = [] if is_all else options.some_named(given, _NOUNS[kind])
    before = ("Stopped sandbox ", "Removed sandbox ") if kind == "pod" else ("", "")
    results = Results(app)
    with app.open_client("runtime") as client:
        targets = every(client, kind) if is_all else _targets(app, client, kind, words)
        for removal in remove(client, targets, kind, force=force, keep_logs=keep_logs):
            if removal.is_stopped:
                results.say([f"{before[0]}{removal.target}"])
            if removal.error is None:
                results.say([f"{before[1]}{removal.target}"])
            else:
                results.fail(removal.error)
            for warning in removal.warnings:
                app.env.warn(warning)
            if removal.missing_log and app.persona.is_crictl:
                app.env.error(f"the log file {quote_path(removal.missing_log)} does not exist")
    if not targets:
        app.env.note(f"no {kind}s to remove")
    results.finish()


def _limit(option: str, help: str) -> Any:
    return options.int_option(option, show_default=False, help=help)


def update(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.containers)] = None,
    cpu_count: Annotated[int | None, _limit("--cpu-count", "Windows only; ignored here.")] = None,
    cpu_maximum: Annotated[
        int | None, _limit("--cpu-maximum", "Windows only; ignored here.")
    ] = None,
    cpu_period: Annotated[int | None, _limit("--cpu-period", "CFS period in microseconds.")] = None,
    cpu_quota: Annotated[int | None, _limit("--cpu-quota", "CFS quota in microseconds.")] = None,
    cpu_share: Annotated[int | None, _limit("--cpu-share", "Relative CPU weight (shares).")] = None,
    cpuset_cpus: Annotated[
        str | None, typer.Option("--cpuset-cpus", metavar="LIST", help="CPUs, such as 0-2,7.")
    ] = None,
    cpuset_mems: Annotated[
        str | None, typer.Option("--cpuset-mems", metavar="LIST", help="Memory nodes, such as 0-1.")
    ] = None,
    memory: Annotated[int | None, _limit("--memory", "Memory limit in bytes.")] = None,
    oom_score_adj: Annotated[
        str | None,
        typer.Option(
            "--oom-score-adj", metavar="INT", help="OOM score adjustment, from -1000 to 1000."
        ),
    ] = None,
) -> None:
    """Change the resource limits of containers.

    Updates them in order; if one fails, the others still are. Prints each ID or name as given.

    Example: pycrictl update --memory 67108864 web
    """
    app: AppContext = ctx.obj
    del cpu_count, cpu_maximum
    score = None
    if oom_score_adj is not None:
        try:
            score = parse_int(oom_score_adj)
        except ValueError as error:
            if not app.persona.is_crictl:
                raise UsageError(f"invalid value for '--oom-score-adj': {error}") from None
            score = 0
    given = {
        "cpu_period": cpu_period,
        "cpu_quota": cpu_quota,
        "cpu_shares": cpu_share,
        "memory_limit_in_bytes": memory,
        "oom_score_adj": score,
        "cpuset_cpus": cpuset_cpus or None,
        "cpuset_mems": cpuset_mems or None,
    }
    limits = {name: limit for name, limit in given.items() if limit is not None}
    if score is not None and not -1000 <= score <= 1000:
        raise UsageError("--oom-score-adj must be from -1000 to 1000")
    if not limits and not app.persona.is_crictl:
        if "" in (cpuset_cpus, cpuset_mems):
            raise UsageError("every limit is empty", hint="is a script's variable not set?")
        raise UsageError("nothing to update", hint="give a limit, such as --memory")
    _act(app, "container", containers, "UpdateContainerResources", linux=limits)


def checkpoint(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.running_containers)] = None,
    export: Annotated[
        str, options.file_option("--export", "-e", help="Archive to write on the node.")
    ] = "",
) -> None:
    """Checkpoint running containers.

    If one fails, the others are still checkpointed, in order. Prints each ID or name as given.

    Example: pycrictl checkpoint -e /var/tmp/web.tar web
    """
    app: AppContext = ctx.obj
    if not export:
        raise UsageError(
            "--export is missing", hint="name the archive: --export=/path/to/checkpoint.tar"
        )
    if len({*(containers or ())}) > 1:
        app.env.warn(f'each checkpoint is written to "{export}": only the last one remains')
    timeout = int(app.config.timeout_s)
    _act(app, "container", containers, "CheckpointContainer", location=export, timeout=timeout)
