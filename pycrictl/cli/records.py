"""Groups of options that commands take as records, each group declared once.

A record is a dataclass whose fields are options, declared like parameters of a command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

Command = Callable[..., None]


def with_records(command: Command) -> Command:
    """Return a command with the fields of its records as parameters in their places."""
    taken = inspect.signature(command, eval_str=True).parameters.values()
    records: dict[str, Any] = {
        each.name: each.annotation for each in taken if is_dataclass(each.annotation)
    }

    @wraps(command)
    def call(**given: object) -> None:
        for name, record in records.items():
            given[name] = record(**{each.name: given.pop(each.name) for each in fields(record)})
        command(**given)

    parameters: list[inspect.Parameter] = []
    for each in taken:
        if each.name in records:
            hints = get_type_hints(each.annotation, include_extras=True)
            parameters += [
                each.replace(
                    name=option.name, annotation=hints[option.name], default=option.default
                )
                for option in fields(each.annotation)
            ]
        else:
            parameters.append(each)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
