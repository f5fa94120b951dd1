"""``pycrictl config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.context import app_context
from pycrictl.errors import UsageError

if TYPE_CHECKING:
    from pycrictl.environ import Environment


def config(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY] [VALUE]",
            help="Same as --get KEY, or --set KEY=VALUE.",
            show_default=False,
        ),
    ] = None,
    get: Annotated[
        str | None, typer.Option("--get", metavar="KEY", help="Show the value of a key.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all keys.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key; repeatable."),
    ] = None,
) -> None:
    """Show or change the configuration file.

    The file is the one of --config. Values are shown as the file has them, which need not be the
    ones in force. Only the keys that are set are changed; comments are kept.

    Example: pycrictl config --set timeout=10,debug=false
    """
    from pycrictl import configfile

    app = app_context(ctx)
    words = words or []
    if sum((get is not None, bool(set_), list_, bool(words))) != 1 or len(words) > 2:
        raise UsageError("give one of --get, --set, --list, or KEY [VALUE]")
    path = configfile.path_of(app.flags.config, app.env.environ)
    if list_:
        _write_table(app.env, configfile.values(path))
    elif set_:
        configfile.change(path, options.split_pairs(set_, "--set"))
    elif len(words) == 2:
        configfile.change(path, {words[0]: words[1]})
    else:
        key = get if get is not None else words[0]
        configfile.check_key(key)
        app.env.stdout.write(f"{configfile.values(path)[key]}\n")


def _write_table(env: Environment, values: dict[str, str]) -> None:
    from pycrictl.show import render

    if env.stdout_is_terminal:
        env.stdout.write(render.CLEAR_SCREEN)
    render.write_table(render.Table(("KEY", "VALUE"), list(values.items())), env.stdout)
