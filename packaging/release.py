"""``release.py``: make a release of the checked-out commit, in ``build/release``.

The packages and the image are built in a clean clone that has passed `.ci/run`. The release adds
the image's bill of materials, which covers everything in any of them (CycloneDX), the kubectl
plugins for krew, the manifests for krew and Homebrew, SHA256SUMS, and a statement of what they were
built from (in-toto, SLSA provenance). With a key, gpg signs SHA256SUMS and the statement.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import bundle
import image
import sbom
from tree import HOMEPAGE

ROOT: Final = Path(__file__).resolve().parent.parent
OUTPUT: Final = ROOT / "build" / "release"

_CHANNELS: Final = Path(__file__).with_name("channels")
_PLUGINS: Final = "kubectl-plugins"
_BUILD_TYPE: Final = f"{HOMEPAGE}/blob/main/CONTRIBUTING.md#releases"
_TARGETS: Final = ("dist", "image")


class NotReadyError(Exception):
    """Why no release can be made."""


def main() -> int:
    """Make the release; return the exit status."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("--trial", action="store_true", help="no tag is needed, nothing is checked")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="with what was built before")
    parser.add_argument("--sign", metavar="KEY", help="of gpg")
    arguments = parser.parse_args()
    try:
        version = _version(ROOT)
        if not arguments.trial:
            _require_ready(version)
        shutil.rmtree(OUTPUT, ignore_errors=True)
        OUTPUT.mkdir(parents=True)
        built = arguments.built or _build(is_checked=not arguments.trial)
        for file in sorted(built.glob("pycrictl*")):
            shutil.copy(file, OUTPUT)
        complete(OUTPUT, version, commit=_git("rev-parse", "HEAD"))
        if arguments.sign:
            for name in ("SHA256SUMS", _provenance_name(version)):
                sign = ["gpg", "--batch", "--yes", "--armor", "--local-user", arguments.sign]
                _run(*sign, "--detach-sign", name, cwd=OUTPUT)
    except NotReadyError as exc:
        print(f"release: {exc}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as exc:
        print(f"release: '{' '.join(map(str, exc.cmd))}' failed", file=sys.stderr)
        return 1
    for file in sorted(OUTPUT.iterdir()):
        print(file)
    return 0


def complete(folder: Path, version: str, *, commit: str) -> None:
    """Add the other files of a release to a folder of packages.

    Raises:
        NotReadyError: there is no image, from which the bill of materials is taken.
        subprocess.CalledProcessError: twine found faults in a Python package and printed them.
    """
    lists = {image.contents(archive) for archive in folder.glob("*-image-*.tar")}
    if len(lists) != 1:
        raise NotReadyError(f"the images have {len(lists)} lists of contents, not one")
    (folder / f"pycrictl-{version}.cdx.json").write_bytes(lists.pop())
    pythons = [*folder.glob("*.whl"), folder / f"pycrictl-{version}.tar.gz"]
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, pythons))
    for program in folder.glob("*.bin"):
        stem = program.stem.removeprefix("pycrictl-")
        _pack_plugins(program, folder / f"{_PLUGINS}-{stem}.zip")
    sums = _sums(folder)
    for template in _CHANNELS.iterdir():
        text = rendered(template.read_text("utf-8"), version, sums)
        (folder / template.name).write_text(text, "utf-8")
    sums = _sums(folder)
    lines = [f"{digest}  {name}\n" for name, digest in sums.items()]
    (folder / "SHA256SUMS").write_text("".join(lines))
    statement = json.dumps(provenance(version, commit, sums), indent=2)
    (folder / _provenance_name(version)).write_text(f"{statement}\n")


def rendered(template: str, version: str, sums: dict[str, str]) -> str:
    """Return a manifest from its template, without parts for files that the release lacks."""
    values = {"VERSION": version, "HOMEPAGE": HOMEPAGE, "URL": _download(version)}
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    template = re.sub(
        r"@IF (\S+)@\n(.*?)@END@\n",
        lambda match: match[2] if match[1] in sums else "",
        template,
        flags=re.DOTALL,
    )
    return re.sub(r"@SHA256 (\S+)@", lambda match: sums[match[1]], template)


def provenance(version: str, commit: str, sums: dict[str, str]) -> dict[str, Any]:
    """Return an in-toto statement (v1) with SLSA's provenance predicate (v1)."""
    source = f"git+{HOMEPAGE}@refs/tags/v{version}"
    wheels = [
        {"uri": f"pkg:pypi/{name}@{pin}", "digest": {"sha256": digest}}
        for name, (pin, digests) in sbom.pins(bundle.PROGRAM, bundle.AGENT).items()
        for digest in digests
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sums[name]}} for name in sums],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    "source": source,
                    "targets": list(_TARGETS),
                    "architectures": list(bundle.MACHINES.values()),
                },
                "resolvedDependencies": [
                    {"uri": source, "digest": {"gitCommit": commit}},
                    *wheels,
                ],
            },
            "runDetails": {"builder": {"id": f"{HOMEPAGE}/blob/main/packaging/release.py"}},
        },
    }


def _require_ready(version: str) -> None:
    if _git("status", "--porcelain"):
        raise NotReadyError("there are changes that are not committed")
    if f"v{version}" not in _git("tag", "--points-at", "HEAD").split():
        raise NotReadyError(f"the commit has no tag v{version}, the version of its program")
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if newest is None or not re.fullmatch(rf"\[{version}\] - \d{{4}}-\d\d-\d\d", newest[1]):
        raise NotReadyError(f"the newest section of CHANGELOG.md is not [{version}] with a date")


def _build(*, is_checked: bool) -> Path:
    """Build in a clone; return the folder of built files."""
    clone = ROOT / "build" / "clone"
    shutil.rmtree(clone, ignore_errors=True)
    _run("git", "clone", "--quiet", str(ROOT), str(clone))
    if is_checked:
        _run(".ci/run", cwd=clone)
    has = re.findall(r"^(\w+):", (clone / "Makefile").read_text(), re.MULTILINE)
    targets = [target for target in _TARGETS if target in has]
    for architecture in bundle.MACHINES.values():
        _run("make", *targets, f"ARCH={architecture}", cwd=clone)
    return clone / "dist"


def _pack_plugins(program: Path, path: Path) -> None:
    """Pack the single-file program for krew; the name of krew's link to it makes it a plugin."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in ((program, "pycrictl"), (ROOT / "LICENSE", "LICENSE")):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if file == program else 0o644) << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


def _sums(folder: Path) -> dict[str, str]:
    """Return SHA-256 of each file of a folder by its name."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _download(version: str) -> str:
    return f"{HOMEPAGE}/releases/download/v{version}"


def _provenance_name(version: str) -> str:
    return f"pycrictl-{version}.intoto.json"


def _version(root: Path) -> str:
    text = (root / "pycrictl" / "__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return str(version)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _run(*command: str, cwd: Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True)


if __name__ == "__main__":
    sys.exit(main())
