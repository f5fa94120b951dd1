"""``jsonschema`` below ``create``, ``run``, ``runp`` and ``pull``: schemas of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pycrictl.cli import crictl
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Option
from pycrictl.errors import MissingArgument

if TYPE_CHECKING:
    from pycrictl.cri.specs.schema import Schema


def pod(app: AppContext) -> None:
    """Print the JSON Schema of pod configurations.

    Example: pycrictl PARENT jsonschema
    """
    from pycrictl.cri.specs.schema import pod_schema

    _write(app, pod_schema())


def pod_and_container(
    app: AppContext,
    pod: Annotated[bool, Option("--pod", "-p", help="The schema of a pod.")] = False,
    container: Annotated[
        bool, Option("--container", "-c", help="The schema of a container.")
    ] = False,
) -> None:
    """Print the JSON Schemas of pod and container configurations.

    Example: pycrictl PARENT jsonschema --container
    """
    from pycrictl.cri.specs.schema import container_schema, pod_schema

    if not pod and not container:
        raise MissingArgument("no schema is selected", hint="give --pod, --container or both")
    if pod:
        _write(app, pod_schema())
    if container:
        _write(app, container_schema())


def _write(app: AppContext, schema: Schema) -> None:
    import json

    if crictl.is_called():
        from pycrictl.cli import crictl_schema

        schema = crictl_schema.plain(schema)
    app.env.stdout.write(json.dumps(schema, indent=2) + "\n")
