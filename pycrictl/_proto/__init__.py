"""Generated from proto/ by proto/generate.py; of its modules none is written by hand.

Importing any of them imports protobuf's pure-Python implementation as well, a fifth of the start of
a short command, which nothing uses where its C implementation is there. So that is put off until
something is taken from it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType

from pycrictl.signals import undisturbed


def _put_off(package: str, name: str) -> None:
    """Have a module executed when its first attribute is asked for."""
    full_name = f"{package}.{name}"
    spec = None if full_name in sys.modules else find_spec(full_name)
    if spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[full_name] = module
    setattr(sys.modules[package], name, module)


_put_off("google.protobuf.internal", "python_message")


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
