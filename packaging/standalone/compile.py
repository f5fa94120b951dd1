"""``compile.py SOURCES TARGET [--files]``: copy modules of a folder, compiled by this interpreter.

They get into one file, for `one_file`, except those that the interpreter needs before it can load
it; with ``--files``, into a file each. Only pycrictl's keep their docstrings, which help shows.
"""

from __future__ import annotations

import marshal
import py_compile
import shutil
import sys
from pathlib import Path

FIRST = ("__future__.py", "encodings", "one_file.py")
HEADER_BYTES = 8

sources, target = map(Path, sys.argv[1:3])
in_one_file = len(sys.argv) == 3
index: dict[str, tuple[bool, int, int]] = {}
code = bytearray()
for file in sorted(path for path in sources.rglob("*") if path.is_file()):
    name = file.relative_to(sources)
    level = 0 if name.parts[0] == "pycrictl" else 2
    if file.suffix == ".py" and in_one_file and name.parts[0] not in FIRST:
        content = compile(file.read_bytes(), str(name), "exec", dont_inherit=True, optimize=level)
        compiled = marshal.dumps(content)
        is_package = file.name == "__init__.py"
        module = ".".join(name.parent.parts if is_package else name.with_suffix("").parts)
        index[module] = (is_package, len(code), len(compiled))
        code += compiled
        continue
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".py":
        py_compile.compile(
            str(file),
            str(path.with_suffix(".pyc")),
            dfile=str(name),
            doraise=True,
            optimize=level,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    else:
        shutil.copyfile(file, path)
if index:
    packed = marshal.dumps(index)
    header = len(packed).to_bytes(HEADER_BYTES, "little")
    (target / "modules").write_bytes(header + packed + code)
