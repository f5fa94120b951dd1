"""Generated from proto/ by proto/generate.py; of its modules none is written by hand.

What a short command does not use must not cost its start. Importing any of them imports protobuf's
pure-Python implementation as well, and others that nothing uses where its C implementation is
there: they are put off until something is taken from them. The classes of messages, of which a
command uses a few of two hundred, are made when they are first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pycrictl.signals import undisturbed

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor


def _put_off(package: str, name: str) -> None:
    """Have a module executed when its first attribute is asked for."""
    full_name = f"{package}.{name}".lstrip(".")
    spec = None if full_name in sys.modules else find_spec(full_name)
    if spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[full_name] = module
    if package:
        setattr(sys.modules[package], name, module)


_put_off("google.protobuf.internal", "python_message")
_put_off("google.protobuf", "text_encoding")
_put_off("", "calendar")


def __getattr__(name: str) -> ModuleType:
    """Import a module when it is first asked for: signals wait, or protobuf's C code may crash."""
    return load(__name__, name)


def load(package: str, name: str) -> ModuleType:
    """Import a module of a package.

    Raises:
        AttributeError: it has none of that name.
    """
    if name.endswith("_pb2"):
        with undisturbed():
            return import_module(f"{package}.{name}")
    raise AttributeError(name)


def module_of(module: str, serialized_file: bytes) -> tuple[FileDescriptor, Callable[[str], Any]]:
    """Return what a generated module consists of: its descriptor and its ``__getattr__``.

    Args:
        module: its full name.
        serialized_file: a ``FileDescriptorProto``; what it imports must have been imported.
    """
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

    file = descriptor_pool.Default().AddSerializedFile(serialized_file)
    messages, enums = file.message_types_by_name, file.enum_types_by_name
    numbers = {
        name: value.number for enum in enums.values() for name, value in enum.values_by_name.items()
    }

    def find(name: str) -> Any:
        if name in messages:
            found: Any = message_factory.GetMessageClass(messages[name])
        elif name in enums:
            found = EnumTypeWrapper(enums[name])
        elif name in numbers:
            found = numbers[name]
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        setattr(sys.modules[module], name, found)
        return found

    # With the first class protobuf imports modules of its own, which must not be disturbed either.
    find(next(iter(messages)))
    return file, find
