"""The files that accompany a release's packages, and the packages checked by twine."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pycrictl import __version__
from tests.packaging.building import PYTHON, ROOT, Layout

CHANNELS = ROOT / "packaging" / "channels"
FILES = {
    f"pycrictl-{__version__}-linux-x86_64.tar.xz": "a" * 64,
    f"kubectl-plugins-{__version__}-linux-x86_64.zip": "b" * 64,
}
CALL = """
import json, sys
sys.path.insert(0, "packaging")
import release, sbom
print({})
"""
COMPLETE = """
import pathlib, sys
sys.path.insert(0, "packaging")
import release
release.complete(pathlib.Path(sys.argv[1]), sys.argv[2], commit="c" * 40)
"""
JOIN = """
import pathlib, sys
sys.path.insert(0, "packaging")
import image
image.join(*map(pathlib.Path, sys.argv[1:]), "1", 0)
"""
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


def release(expression: str, python: str | Path = sys.executable) -> Any:
    command = [str(python), "-c", CALL.format(f"json.dumps({expression})")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_one_tag_has_the_images_of_both_machines(tmp_path: Path) -> None:
    machines = ["amd64", "arm64"]
    for machine in machines:
        blobs = tmp_path / machine / "blobs/sha256"
        blobs.mkdir(parents=True)
        manifest = json.dumps({"annotations": {"a": "b"}, "for": machine}).encode()
        digest = hashlib.sha256(manifest).hexdigest()
        (blobs / digest).write_bytes(manifest)
        image = {"mediaType": "m", "digest": f"sha256:{digest}", "size": len(manifest)}
        image["annotations"] = {"org.opencontainers.image.ref.name": "1"}
        (tmp_path / machine / "index.json").write_text(json.dumps({"manifests": [image]}))
        archive = tmp_path / f"pycrictl-1-image-{machine}.tar"
        subprocess.run(["tar", "-C", tmp_path / machine, "-cf", archive, "."], check=True)
    command = [sys.executable, "-c", JOIN, str(tmp_path), str(tmp_path / "joined")]
    subprocess.run(command, cwd=ROOT, check=True)
    layout = Layout(tmp_path / "pycrictl-1-image.tar", tmp_path / "unpacked")
    images = layout.read(layout.tagged()["1"])["manifests"]
    assert [image["platform"]["architecture"] for image in images] == machines
    assert [layout.read(image)["for"] for image in images] == machines


@pytest.mark.parametrize("name", sorted(path.name for path in CHANNELS.iterdir()))
def test_manifests_name_what_there_is(name: str) -> None:
    template = (CHANNELS / name).read_text("utf-8")
    text = release(f"release.rendered({template!r}, {__version__!r}, {FILES!r})")
    assert not re.search("@[A-Z]", text)
    assert "aarch64" not in text
    ((url, digest),) = re.findall(r'(https:\S+x86_64\S+?)"?\n\s+sha256:? "?(\w+)', text)
    start, _, file = url.rpartition("/")
    assert start.endswith(f"/releases/download/v{__version__}")
    assert FILES[file] == digest
    if name.endswith(".yaml"):
        assert [platform["bin"] for platform in yaml.safe_load(text)["spec"]["platforms"]] == [
            "pycrictl"
        ]


def test_provenance_names_every_file_and_all_that_went_in() -> None:
    statement = release(f"release.provenance({__version__!r}, {'c' * 40!r}, {FILES!r})")
    assert {
        subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]
    } == FILES
    definition = statement["predicate"]["buildDefinition"]
    source, *rest = definition["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "c" * 40}
    assert source["uri"] == definition["externalParameters"]["source"]
    files = ("bundled.txt", "image/modules.txt")
    bundled = "".join((ROOT / "packaging" / name).read_text("utf-8") for name in files)
    hashes = re.findall("sha256:([0-9a-f]{64})", bundled)
    assert [descriptor["digest"]["sha256"] for descriptor in rest] == hashes


@pytest.mark.parametrize(("tag", "said"), [(False, "has no tag"), (True, "CHANGELOG")])
def test_what_is_not_ready_is_not_released(tmp_path: Path, tag: bool, said: str) -> None:
    clone = tmp_path / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    subprocess.run(["git", "clone", "--quiet", "--shared", "--no-tags", ROOT, clone], check=True)
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    for path in (ROOT / "packaging").glob("*.py"):
        (clone / "packaging" / path.name).write_bytes(path.read_bytes())
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "Change"], check=True)
    if tag:
        subprocess.run([*git, "tag", f"v{__version__}"], check=True)
    command = [sys.executable, str(clone / "packaging" / "release.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("release: ")
    assert said in done.stderr
    assert not (clone / "build").exists()


def test_the_python_packages_are_as_the_index_wants_them(released: Path) -> None:
    files = [*released.glob("*.whl"), *released.glob("*.tar.gz")]
    assert len(files) == 2  # no other file looks like an sdist
    command = [str(PYTHON), "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def completed(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    for file in released.glob("pycrictl*"):
        (folder / file.name).symlink_to(file)
    command = [str(PYTHON), "-c", COMPLETE, str(folder), __version__]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def test_the_bill_of_materials_names_all_that_is_in_any_package(completed: Path) -> None:
    text = (completed / f"pycrictl-{__version__}.cdx.json").read_text("utf-8")
    command = [str(PYTHON), "-c", VALIDATE]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    parts = {component["name"]: component for component in json.loads(text)["components"]}
    packaging = ROOT / "packaging"
    pins, of_image = (
        {*re.findall(r"^([\w-]+)==", (packaging / name).read_text("utf-8"), re.MULTILINE)}
        for name in ("bundled.txt", "image/modules.txt")
    )
    of_image |= {"ca-certificates", "libc6"}
    compiled = {"CPython", "OpenSSL", "zlib", "libffi", "liblzma", "libstdc++"}
    assert {*parts} == {*pins, *compiled, *of_image}
    assert [name for name in compiled if not re.fullmatch(r"[\d.]+", parts[name]["version"])] == []
    said = {name for name, part in parts.items() if part.get("description") == "In the image only."}
    assert said == of_image


def test_a_release_sums_what_it_has(completed: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=completed)
    assert done.returncode == 0
    lines = (completed / "SHA256SUMS").read_text().splitlines()
    beside = {"SHA256SUMS", f"pycrictl-{__version__}.intoto.json"}
    assert {line.split()[1] for line in lines} == {
        file.name for file in completed.iterdir()
    } - beside
