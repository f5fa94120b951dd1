"""Load the program's modules from one file, which takes less time than a file for each.

The file ``modules`` begins with the size of its index, in 8 bytes, and the index: for each module
whether it is a package, where its code begins after the index, and the size of the code. Both are
in Python's marshal format. Extension modules are files of their own, for Python's finders.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
else:  # importlib would have to be loaded first
    Loader = object
    ModuleSpec = type(sys.__spec__)

HEADER_BYTES = 8


class OneFile(Loader):
    """A finder and loader (PEP 451) of the modules in a folder's file ``modules``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Kept open: after an upgrade, running services still load what belongs to them.
        self._file = os.open(f"{folder}/modules", os.O_RDONLY | os.O_CLOEXEC)
        size = int.from_bytes(os.pread(self._file, HEADER_BYTES, 0), "little")
        self.index: dict[str, tuple[bool, int, int]]
        self.index = marshal.loads(os.pread(self._file, size, HEADER_BYTES))
        self._begin = HEADER_BYTES + size

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.index:
            return None
        is_package, begin, size = self.index[name]
        folder = f"{self._folder}/{name.replace('.', '/')}"
        file = f"{folder}/__init__.py" if is_package else f"{folder}.py"
        spec = ModuleSpec(name, self, origin=file, loader_state=(begin, size))
        spec.has_location = True  # modules find other files by their __file__
        if is_package:
            spec.submodule_search_locations = [folder]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create it."""

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        begin, size = module.__spec__.loader_state
        exec(marshal.loads(os.pread(self._file, size, self._begin + begin)), module.__dict__)


def install(folder: str) -> None:
    """Find modules in a folder's file before the folders of ``sys.path``."""
    sys.meta_path.insert(-1, OneFile(folder))
