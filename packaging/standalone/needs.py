"""``needs.py FOLDER``: print the modules that `unpack` in the folder needs to run."""

from __future__ import annotations

import sys
import sysconfig
from modulefinder import ModuleFinder
from pathlib import Path

own, stdlib = sys.argv[1], sysconfig.get_path("stdlib")
finder = ModuleFinder(path=[own, stdlib])
# Including the implicit imports of the interpreter's own start.
finder.import_hook("unpack")
for encoding in ("ascii", "cp437", "latin_1", "utf_8"):
    finder.import_hook(f"encodings.{encoding}")
for name in sorted(finder.modules):
    file = getattr(finder.modules[name], "__file__", None)
    for folder in (own, stdlib):
        if file and Path(file).is_relative_to(folder):
            print(Path(file).relative_to(folder))
