"""The settings of a proxy that is started with a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import cast

import typer

from pycrictl.base.config import Flags
from pycrictl.base.environ import Environment
from pycrictl.cli.command_table import BY_NAME
from pycrictl.cli.commands.proxy import ProxyOptions, settings_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import Persona
from pycrictl.cli.tree import command_of
from pycrictl.proxy.settings import ProxySettings


def settings_from(*words: str, environ: Mapping[str, str] | None = None) -> ProxySettings:
    app = AppContext(Environment(environ=environ or {}), Flags(), Persona())
    command = command_of(BY_NAME["proxy"])
    ctx = cast("typer.Context", command.make_context("proxy", list(words), obj=app))
    given = ProxyOptions(**{field.name: ctx.params[field.name] for field in fields(ProxyOptions)})
    return settings_of(ctx, given, ctx.params["config"])
