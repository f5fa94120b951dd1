"""``pycrictl config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pycrictl.cli import crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Argument, Option
from pycrictl.errors import MissingArgument, UsageError

if TYPE_CHECKING:
    from pycrictl.environ import Environment


def config(
    app: AppContext,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[KEY] [VALUE]",
            help="Same as --get KEY, or --set KEY=VALUE.",
            show_default=False,
        ),
    ] = None,
    get: Annotated[
        str | None, Option("--get", metavar="KEY", help="Show the value of a key.")
    ] = None,
    list_: Annotated[bool, Option("--list", help="Show all keys.")] = False,
    no_headers: list_options.NoHeaders = False,
    output: options.Output = "table",
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Set a key; repeatable."),
    ] = None,
) -> None:
    """Show or change the configuration file.

    The file is the one of --config. Values are shown as the file has them, which need not be the
    ones in force. Only the keys that are set are changed; comments are kept.

    Example: pycrictl config --set timeout=10,debug=false
    """
    from pycrictl import configfile
    from pycrictl.show.inspect_format import InspectFormat

    chosen = InspectFormat(output, formats=options.OUTPUT_FORMATS)
    words = words or []
    path = configfile.path_of(app.flags.config, app.env.environ)
    is_whole = crictl.is_called()
    if is_whole:
        if configfile.create(path):
            app.env.warn(f"config file {path} did not exist")
        get, set_, list_ = crictl.one_action(get, set_, list_)
    if sum((get is not None, bool(set_), list_, bool(words))) != 1 or len(words) > 2:
        raise MissingArgument("give one of --get, --set, --list, or KEY [VALUE]")
    if not list_ and (no_headers or output != "table"):
        raise UsageError("--no-headers and --output are for --list")
    if list_ and chosen.is_table:
        values = configfile.values(path, is_whole=is_whole)
        _write_table(app.env, values, header=not no_headers)
    elif list_:
        chosen.write_document(configfile.values(path, is_whole=is_whole), app.env.stdout)
    elif set_:
        configfile.change(path, options.split_pairs(set_, "--set"), is_whole=is_whole)
    elif len(words) == 2:
        crictl.inform(app.env, f'setting "{words[0]}" to "{words[1]}"')
        configfile.change(path, {words[0]: words[1]}, is_whole=is_whole)
    else:
        key = get if get is not None else words[0]
        configfile.check_key(key)
        app.env.stdout.write(f"{configfile.values(path)[key]}\n")


def _write_table(env: Environment, values: dict[str, str], *, header: bool) -> None:
    from pycrictl.show import render

    if env.stdout_is_terminal or crictl.is_called():
        env.stdout.write(render.CLEAR_SCREEN)
    table = render.Table(("KEY", "VALUE"), list(values.items()))
    render.write_table(table, env.stdout, header=header)
