"""The committed code of pycrictl/_proto is what proto/ and the pinned compiler make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = Path("pycrictl", "_proto")


def contents(root: Path) -> dict[str, bytes]:
    """Every file below pycrictl/_proto except the package's own two."""
    folder = root / GENERATED
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.py*")
        if path.name != "__init__.py" and path.parent.name != "__pycache__"
    }


def generate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "proto" / "generate.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


def test_regenerated_code_is_the_committed_code(tmp_path: Path) -> None:
    result = generate("--out", str(tmp_path), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    made, committed = contents(tmp_path), contents(ROOT)
    assert len(made) == 18
    assert sorted(made) == sorted(committed)
    for name, data in made.items():
        assert data == committed[name], f"{name}: run python proto/generate.py"


def test_another_compiler_is_refused(tmp_path: Path) -> None:
    """The program runs on a copy of the tree whose pyproject.toml pins another version."""
    (tmp_path / "proto").mkdir()
    program = tmp_path / "proto" / "generate.py"
    program.write_bytes((ROOT / "proto" / "generate.py").read_bytes())
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\ndev = ["grpcio-tools==0.1"]\n')
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 1
    assert result.stderr.startswith("generate.py: needs grpcio-tools 0.1, found ")
    assert not (tmp_path / "pycrictl").exists()
