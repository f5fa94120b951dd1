"""Build the container images: the standalone program on nothing but a C library and certificates.

They include the agent's dependencies, which other packages leave out.

One runs as an unprivileged user; the other, whose tag ends in ``-root``, as root, for pods that
work on the node. They have the same layers. Each has its list of contents attached.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import bundle
import interpreter
import process
import sbom
import standalone
import tree

_SOURCES: Final = Path(__file__).with_name("image")
_PACKAGES: Final = _SOURCES / "packages.txt"
_LIBRARIES: Final = "ld-linux-* libc libdl libm libpthread libresolv librt libutil".split()
_NOBODY: Final = 65532
_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\n"
    f"nonroot:x:{_NOBODY}:{_NOBODY}:nonroot:/home/nonroot:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{_NOBODY}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_FOLDERS: Final = {"home/nonroot": 0o700, "host": 0o755, "root": 0o700, "run": 0o755, "tmp": 0o1777}
"""Empty folders; a node's root is mounted at `host`."""

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_NOTHING: Final = "application/vnd.oci.empty.v1+json"


def build(program: standalone.Program, output: Path, work: Path) -> None:
    """Write an archive of an OCI layout with both images.

    Raises:
        subprocess.CalledProcessError: a tool failed; its output has the reason.
    """
    base, own, layout = work / "base", work / "own", work / "layout"
    _place_system(base, work / "apt", program.architecture)
    (own / "usr/bin").mkdir(parents=True)
    folder, modules = own / "usr/lib/pycrictl", work / "modules"
    shutil.copytree(program.folder, folder, ignore=shutil.ignore_patterns("share"))
    bundle.build(bundle.AGENT, modules, machine=program.machine)
    standalone.add_agent(program, modules, folder)
    (own / "usr/bin/pycrictl").symlink_to("../lib/pycrictl/pycrictl")
    layers = [_layer(folder, program.time_s) for folder in (base, own)]
    created = datetime.fromtimestamp(program.time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts = {
        "created": created,
        "description": "Command line and proxy for container runtimes on Kubernetes nodes",
        "licenses": "Apache-2.0",
        "source": tree.HOMEPAGE,
        "title": "pycrictl",
        "url": tree.HOMEPAGE,
        "vendor": "The pycrictl authors",
        "version": program.version,
    }
    labels = [f"org.opencontainers.image.{name}={value}" for name, value in facts.items()]
    _umoci("init", "--layout", str(layout))
    for tag, user in ((program.version, _NOBODY), (f"{program.version}-root", 0)):
        image = f"{layout}:{tag}"
        _umoci("new", "--image", image)
        for layer in layers:
            _umoci("raw", "add-layer", "--image", image, f"--history.created={created}", str(layer))
        words = [f"--config.user={user}:{user}", "--config.entrypoint=/usr/bin/pycrictl"]
        words += ["--config.env=PATH=/usr/bin", f"--created={created}", "--os=linux"]
        words += [f"--architecture={program.architecture}", "--no-history"]
        words += [f"--config.label={label}" for label in labels]
        words += [f"--manifest.annotation={label}" for label in labels]
        _umoci("config", "--image", image, *words)
    _umoci("gc", "--layout", str(layout))
    packages = {name: version for _, name, version in interpreter.pins(_PACKAGES)}
    compiled = interpreter.contents(program.root)
    _attach(layout, sbom.document(program.version, compiled, packages), facts)
    _pack(layout, _archive(output, program.version, program.architecture), program.time_s)


def contents(archive: Path) -> bytes:
    """Return the document that is attached to the images of an archive."""
    with tarfile.open(archive) as entries:

        def blob(name: str) -> bytes:
            file = entries.extractfile(f"./{name}")
            assert file is not None  # it is a regular file
            return file.read()

        index = json.loads(blob("index.json"))["manifests"]
        attached = next(
            descriptor for descriptor in index if descriptor.get("artifactType") == sbom.MEDIA_TYPE
        )
        manifest = json.loads(blob(f"blobs/{attached['digest']}".replace(":", "/")))
        return blob(f"blobs/{manifest['layers'][0]['digest']}".replace(":", "/"))


def join(output: Path, work: Path, version: str, time_s: int) -> None:
    """Write an archive of all machines' images, with an index per tag, if all were built alike.

    Args:
        output: has the archives of the machines.
        work: a folder to make.
        version: of the program.
        time_s: timestamp of all files.
    """
    archives = {name: _archive(output, version, name) for name in bundle.MACHINES.values()}
    if not all(map(Path.exists, archives.values())):
        return
    work.mkdir()
    tags: dict[str, list[dict[str, Any]]] = {}
    lists, labels = [], []
    for architecture, archive in archives.items():
        process.run("tar", "-C", str(work), "-xf", str(archive))
        for descriptor in json.loads((work / "index.json").read_text())["manifests"]:
            tag = descriptor["annotations"]["org.opencontainers.image.ref.name"]
            if tag.endswith(".sbom"):
                lists.append(descriptor)
                continue
            platform = {"architecture": architecture, "os": "linux"}
            image = {key: descriptor[key] for key in ("mediaType", "digest", "size")}
            tags.setdefault(tag, []).append({**image, "platform": platform})
            manifest = work / "blobs" / descriptor["digest"].replace(":", "/")
            labels.append(json.loads(manifest.read_text())["annotations"])
    if any(label != labels[0] for label in labels):
        return
    indexes = []
    for tag, images in tags.items():
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": images}
        blob = _blob(work, json.dumps({**index, "annotations": labels[0]}).encode(), _INDEX)
        indexes.append({**blob, "annotations": {"org.opencontainers.image.ref.name": tag}})
    path = work / "index.json"
    path.write_text(json.dumps({"schemaVersion": 2, "manifests": [*indexes, *lists]}))
    _pack(work, output / f"pycrictl-{version}-image.tar", time_s)


def _archive(output: Path, version: str, architecture: str) -> Path:
    return output / f"pycrictl-{version}-image-{architecture}.tar"


def _place_system(root: Path, folder: Path, architecture: str) -> None:
    """Fill `root` with what programs expect of a system: a C library, certificates, users."""
    unpacked = folder / "unpacked"
    for release, name, version in interpreter.pins(_PACKAGES):
        words = interpreter.apt(folder, release, architecture)
        process.run(*words, "download", f"{name}={version}", cwd=folder)
        (package,) = folder.glob(f"{name}_*.deb")
        process.run("dpkg-deb", "-x", str(package), str(unpacked))
    for link in ("lib", "lib64"):
        (root / "usr" / link).mkdir(parents=True)
        (root / link).symlink_to(f"usr/{link}")
    for name in _LIBRARIES:
        for file in sorted(unpacked.rglob(f"{name}.so.*")):
            target = root / file.relative_to(unpacked)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)
    certificates = sorted((unpacked / "usr/share/ca-certificates").rglob("*.crt"))
    together = b"".join(file.read_bytes() for file in certificates)
    tree.write(root / "etc/ssl/certs/ca-certificates.crt", together)
    (root / "etc/ssl/cert.pem").symlink_to("certs/ca-certificates.crt")
    for name, text in _FILES.items():
        tree.write(root / name, text)
    for name, mode in _FOLDERS.items():
        (root / name).mkdir(parents=True)
        (root / name).chmod(mode)


def _layer(folder: Path, time_s: int) -> Path:
    path = folder.with_suffix(".tar")
    _pack(folder, path, time_s)
    return path


def _pack(folder: Path, path: Path, time_s: int) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = _NOBODY if entry.name == "./home/nonroot" else 0
        entry.uname = entry.gname = ""
        entry.mtime = time_s
        return entry

    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as entries:
        entries.add(folder, ".", filter=plain)


def _umoci(*words: str) -> None:
    process.run("umoci", *words)


def _attach(layout: Path, document: bytes, facts: dict[str, str]) -> None:
    """Add the document to each image, as a manifest that names the image as its subject.

    In registries that do not support subjects, it can be found by its tag.
    """
    path = layout / "index.json"
    index = json.loads(path.read_text())
    own = _blob(layout, document, sbom.MEDIA_TYPE)
    nothing = _blob(layout, b"{}", _NOTHING)
    for image in list(index["manifests"]):
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": sbom.MEDIA_TYPE,
            "config": nothing,
            "layers": [own],
            "subject": {key: image[key] for key in ("mediaType", "digest", "size")},
            "annotations": {"org.opencontainers.image.created": facts["created"]},
        }
        tag = f"{image['digest'].replace(':', '-')}.sbom"
        index["manifests"].append(
            {
                **_blob(layout, json.dumps(manifest).encode(), _MANIFEST),
                "artifactType": sbom.MEDIA_TYPE,
                "annotations": {"org.opencontainers.image.ref.name": tag},
            }
        )
    path.write_text(json.dumps(index))


def _blob(layout: Path, content: bytes, media_type: str) -> dict[str, str | int]:
    """Add a blob, and return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}
