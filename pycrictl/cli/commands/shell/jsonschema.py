"""``jsonschema`` below ``create``, ``run``, ``runp`` and ``pull``: schemas of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli.context import app_context
from pycrictl.errors import UsageError

if TYPE_CHECKING:
    from pycrictl.cri.specs.schema import Schema


def pod(ctx: typer.Context) -> None:
    """Print the JSON Schema of pod configurations.

    Example: pycrictl PARENT jsonschema
    """
    from pycrictl.cri.specs.schema import pod_schema

    _write(ctx, pod_schema())


def pod_and_container(
    ctx: typer.Context,
    pod: Annotated[bool, typer.Option("--pod", "-p", help="The schema of a pod.")] = False,
    container: Annotated[
        bool, typer.Option("--container", "-c", help="The schema of a container.")
    ] = False,
) -> None:
    """Print the JSON Schemas of pod and container configurations.

    Example: pycrictl PARENT jsonschema --container
    """
    from pycrictl.cri.specs.schema import container_schema, pod_schema

    if not pod and not container:
        raise UsageError("no schema is selected", hint="give --pod, --container or both")
    if pod:
        _write(ctx, pod_schema())
    if container:
        _write(ctx, container_schema())


def _write(ctx: typer.Context, schema: Schema) -> None:
    import json

    app_context(ctx).env.stdout.write(json.dumps(schema, indent=2) + "\n")
