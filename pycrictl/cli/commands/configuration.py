"""``pycrictl config``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.base import configfile
from pycrictl.base.config import KEYS
from pycrictl.base.errors import MissingArgument
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.show import render


def config(
    ctx: typer.Context,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="Same as --get KEY.", autocompletion=complete.words(*KEYS)
        ),
    ] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="With KEY, the same as --set KEY=VALUE.")
    ] = None,
    get: Annotated[
        str | None,
        typer.Option(
            "--get",
            metavar="KEY",
            help="Show the value of a key.",
            autocompletion=complete.words(*KEYS),
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all keys.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key; repeatable.",
            autocompletion=complete.words(*(f"{key_name}=" for key_name in KEYS)),
        ),
    ] = None,
) -> None:
    """Show or change the configuration file.

    The file is the one that --config names. Shows its values, which flags and the environment may
    override. A change also writes the keys that the file lacks, with zero values as crictl does;
    they count as not set. Comments are kept if the file has plain "key: value" lines only.

    Example: pycrictl config --set timeout=10,debug=false
    """
    app: AppContext = ctx.obj
    path = configfile.path_of(app.flags.config, app.env.environ)
    if app.persona.is_crictl:
        if configfile.create(path):
            app.env.warn(f"config file {path} did not exist")
        # crictl takes the first action, and ignores the others.
        set_ = set_ if get is None else None
        list_ = list_ and get is None and not set_
        key = None if get is not None or set_ or list_ else key or None
        value = value or ""
    if sum((get is not None, bool(set_), list_, key is not None)) != 1:
        raise MissingArgument("give one of --get, --set, --list, or KEY [VALUE]")
    if list_:
        if app.env.stdout_is_terminal or app.persona.is_crictl:
            app.env.stdout.write(render.CLEAR_SCREEN)
        values = configfile.values(path)
        render.write_table(render.Table(("KEY", "VALUE"), [*values.items()]), app.env.stdout)
    elif set_:
        configfile.change(path, options.split_pairs(app, set_, "--set"))
    elif key is not None and value is not None:
        app.persona.inform(app.env, f'setting "{key}" to "{value}"')
        configfile.change(path, {key: value})
    else:
        app.env.stdout.write(f"{configfile.value(path, get or key or '')}\n")
