"""``jsonschema`` below ``create``, ``run``, ``runp`` and ``pull``: schemas of their files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import crictl, crictl_schema
from pycrictl.cli.context import AppContext
from pycrictl.cri.specs.schema import container_schema, pod_schema
from pycrictl.errors import MissingArgument

if TYPE_CHECKING:
    from pycrictl.cri.specs.schema import Schema


def pod(ctx: typer.Context) -> None:
    """Print the JSON Schema of pod configurations.

    Example: pycrictl runp jsonschema
    """
    app: AppContext = ctx.obj
    _write(app, pod_schema())


def pod_and_container(
    ctx: typer.Context,
    pod: Annotated[bool, typer.Option("--pod", "-p", help="The schema of a pod.")] = False,
    container: Annotated[
        bool, typer.Option("--container", "-c", help="The schema of a container.")
    ] = False,
) -> None:
    """Print the JSON Schemas of pod and container configurations.

    Example: pycrictl create jsonschema --container
    """
    app: AppContext = ctx.obj
    if not pod and not container:
        raise MissingArgument("no schema is selected", hint="give --pod, --container or both")
    if pod:
        _write(app, pod_schema())
    if container:
        _write(app, container_schema())


def _write(app: AppContext, schema: Schema) -> None:
    if crictl.is_called():
        schema = crictl_schema.plain(schema)
    app.env.stdout.write(json.dumps(schema, indent=2) + "\n")
