"""``compile.py SOURCES TARGET``: copy a folder of modules, compiled by this interpreter."""

from __future__ import annotations

import py_compile
import shutil
import sys
from pathlib import Path

sources, target = map(Path, sys.argv[1:])
for file in sorted(path for path in sources.rglob("*") if path.is_file()):
    name = file.relative_to(sources)
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".py":
        py_compile.compile(
            str(file),
            str(path.with_suffix(".pyc")),
            str(name),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    else:
        shutil.copyfile(file, path)
