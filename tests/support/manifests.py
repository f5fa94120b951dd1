"""The manifests for Kubernetes, as kustomize builds them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.once import made_once

FOLDER = Path(__file__).parents[2] / "packaging/kubernetes"


OVERLAYS = sorted(path.parent.name for path in FOLDER.glob("*/kustomization.yaml"))


COMPONENTS = sorted(path.parent.name for path in FOLDER.glob("components/*/kustomization.yaml"))


RUNTIMES = {"cri-o", "k0s", "k3s", "microk8s", "rke2"}


AUTHORITIES = {"ca", "cert-manager"}


WHOLE = [
    [name for name in COMPONENTS if name not in (RUNTIMES | AUTHORITIES) - {runtime, authority}]
    for runtime, authority in product(sorted(RUNTIMES), sorted(AUTHORITIES))
]
"""The largest sets of components that fit together: one runtime and one authority each."""


PAIRS = sorted({pair for names in WHOLE for pair in combinations(names, 2)})
"""In `tests/e2e/cluster` a real API server accepts each of them."""


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


Document = dict[str, Any]


def build(overlay: str, scratch: Path) -> list[Document]:
    require_kustomize()
    return made_once(scratch / f"built-{overlay}", lambda: built(manifests(scratch) / overlay))


def manifests(scratch: Path) -> Path:
    """Return a copy of all manifests, with the files of a CA."""
    copy = scratch / "manifests"

    def make() -> None:
        shutil.copytree(FOLDER, copy)
        subprocess.run([copy / "components/ca/make-ca.sh"], check=True, timeout=60)

    made_once(scratch / "manifests-made", make)
    return copy


def built(folder: Path) -> list[Document]:
    words = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return [document for document in yaml.load_all(done.stdout, LOADER) if document]


def combined(names: Sequence[str], scratch: Path) -> list[Document]:
    """Build the base with some components, as a user's own kustomization would.

    Certificates are of ``ca`` unless another authority is among the components.
    """
    require_kustomize()
    names = [*names, *(() if AUTHORITIES & {*names} else ("ca",))]
    folder = manifests(scratch) / f"of {' and '.join(names)}"

    def make() -> list[Document]:
        folder.mkdir()
        made = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["../base"],
            "components": [f"../components/{name}" for name in names],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(made))
        return built(folder)

    return made_once(scratch / folder.name, make)


def require_kustomize() -> None:
    assert shutil.which("kubectl"), "kubectl is missing: run tests/e2e/node/install.sh"
    if kubectl_minor() < 22:  # its kustomize is 2.0 (Debian 12)
        pytest.skip("this kubectl is older than the form of the manifests")


@cache
def kubectl_minor() -> int:
    words = ["kubectl", "version", "--client", "-o", "json"]
    done = subprocess.run(words, capture_output=True, check=True, timeout=60)
    return int(re.sub(r"\D", "", json.loads(done.stdout)["clientVersion"]["minor"]))


def object_of(objects: list[Document], kind: str, name: str = "") -> Document:
    (document,) = (
        item
        for item in objects
        if item["kind"] == kind and (not name or item["metadata"]["name"] == name)
    )
    return document


def template(objects: list[Document]) -> Document:
    spec: Document = object_of(objects, "DaemonSet")["spec"]["template"]
    return spec


def container(objects: list[Document]) -> Document:
    (container_,) = template(objects)["spec"]["containers"]
    assert isinstance(container_, dict)
    return container_


def leaves(objects: list[Document]) -> set[str]:
    """Return all values with their paths, ignoring the order of lists."""
    paths: set[str] = set()

    def visit(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{path}.{key}", inner)
        elif isinstance(value, list):
            for inner in value:
                name = inner.get("name", "") if isinstance(inner, dict) else ""
                visit(f"{path}[{name}]", inner)
        else:
            paths.add(f"{path}={str(value).replace(chr(10), '')}")  # kustomize folds base64

    for item in objects:
        visit(
            f"{item['kind']}/{item['metadata'].get('namespace')}/{item['metadata']['name']}", item
        )
    return paths
