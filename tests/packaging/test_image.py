"""The image, pulled from a registry and run by a real containerd, as nodes run it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pycrictl import __version__
from pycrictl._proto import cri_pb2
from tests.node import programs
from tests.node.kubelet import RUNTIME
from tests.node.lab import Lab
from tests.node.test_commands import SLOW_S, slow_image
from tests.waiting import wait_until

NONROOT = 65532


@pytest.fixture(scope="module")
def layout(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OCI layout that `make image` has built."""
    (archive,) = released.glob("pycrictl-*-image-amd64.tar")
    folder = tmp_path_factory.mktemp("layout")
    with tarfile.open(archive) as entries:
        entries.extractall(folder, filter="data")
    return folder


@pytest.fixture
def pushed(layout: Path, lab: Lab) -> str:
    """The image in the registry, without its tag."""
    name = f"{lab.registry.host}/pycrictl"
    for tag in (__version__, f"{__version__}-root"):
        words = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"]
        subprocess.run([*words, f"oci:{layout}:{tag}", f"docker://{name}:{tag}"], check=True)
    return name


class Ran:
    """A container that runs the image: what it printed, and its exit status."""

    def __init__(self, lab: Lab, container: str, log: Path) -> None:
        self._lab = lab
        self._container = container
        self._log = log

    @property
    def output(self) -> str:
        """What it has printed to both streams."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        parts = [line.split(" ", 3) for line in lines]
        return "".join(text + ("\n" if tag == "F" else "") for _, _, tag, text in parts)

    def ended(self) -> int:
        """Waits for its end, and returns its exit status."""
        wait_until(lambda: self._status().state == cri_pb2.CONTAINER_EXITED)
        status = self._status().exit_code
        wait_until(lambda: self.output or status == 0)
        return status

    def _status(self) -> cri_pb2.ContainerStatus:
        request = cri_pb2.ContainerStatusRequest(container_id=self._container)
        answer = self._lab.node.kubelet.call(
            RUNTIME + "ContainerStatus", request, cri_pb2.ContainerStatusResponse
        )
        return answer.status


def start(
    lab: Lab, folder: Path, image: str, *words: str, on_the_node: bool = False, name: str = "main"
) -> Ran:
    """Runs the image's program as a pod with these words, or as `kubectl debug node` does."""
    kubelet = lab.node.kubelet
    kubelet.pull(image)
    logs = folder / name
    logs.mkdir()
    config = kubelet.pod_config(f"image-{name}", log_directory=str(logs))
    options = config.linux.security_context.namespace_options
    if on_the_node:
        options.pid = options.ipc = cri_pb2.NODE
        config.linux.security_context.privileged = True  # --profile=sysadmin
    pod = kubelet.run_pod(config)
    context = cri_pb2.LinuxContainerSecurityContext(namespace_options=options)
    mounts: Sequence[cri_pb2.Mount] = ()
    if on_the_node:
        context.privileged = True
        mounts = [cri_pb2.Mount(container_path="/host", host_path="/")]
    request = cri_pb2.CreateContainerRequest(
        pod_sandbox_id=pod.id,
        sandbox_config=pod.config,
        config=cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name=name),
            image=cri_pb2.ImageSpec(image=image),
            args=words,
            log_path="0.log",
            mounts=mounts,
            linux=cri_pb2.LinuxContainerConfig(security_context=context),
        ),
    )
    made = kubelet.call(
        RUNTIME + "CreateContainer", request, cri_pb2.CreateContainerResponse
    ).container_id
    kubelet.start_container(made)
    return Ran(lab, made, logs / "0.log")


def test_it_runs_as_nobody(lab: Lab, pushed: str, tmp_path: Path) -> None:
    ran = start(lab, tmp_path, f"{pushed}:{__version__}", "--version")
    assert (ran.ended(), ran.output) == (0, f"pycrictl version {__version__}\n")


@pytest.mark.parametrize("suffix", ["", "-root"])
def test_it_knows_the_call_that_it_serves_with(
    suffix: str, lab: Lab, pushed: str, tmp_path: Path
) -> None:
    ran = start(lab, tmp_path, f"{pushed}:{__version__}{suffix}", "proxy", "--help")
    assert ran.ended() == 0
    assert ran.output.startswith("Usage: pycrictl proxy ")


def test_in_a_debug_pod_of_the_node(lab: Lab, pushed: str, tmp_path: Path) -> None:
    image = f"{pushed}:{__version__}-root"
    kubelet = lab.node.kubelet
    container = programs.start_container(lab, kubelet.run_pod("sessions"), "main")
    at = ("-r", lab.node.endpoint, "-t", "20s")

    def run(name: str, *words: str) -> tuple[int, str]:
        ran = start(lab, tmp_path, image, *at, *words, on_the_node=True, name=name)
        return ran.ended(), ran.output

    status, listed = run("ps", "ps", "-q", "--name", "main", "--no-trunc")
    assert (status, listed) == (0, f"{container}\n")
    target = tmp_path / "copied"
    status, said = run("cp", "cp", "-q", f"{container}:/bin/busybox", f"/host{target}")
    assert (status, said) == (0, "")
    assert target.read_bytes() == Path("/bin/busybox").read_bytes()
    _, reference = slow_image(lab, "image:watched", seed=990, seconds=SLOW_S)
    pull = kubelet.start_pull(reference)
    wait_until(lab.node.store.ingests)
    words = ("image-pull-progress", "--progress", "plain")
    watch = start(lab, tmp_path, image, *at, *words, on_the_node=True, name="progress")
    wait_until(lambda: "image" in watch.output, log=tmp_path / "progress" / "0.log")
    lab.throttle.limit(None)
    assert watch.ended() == 0
    pull.result()


def test_logs_in_a_debug_pod(lab: Lab, pushed: str, tmp_path: Path) -> None:
    said = start(lab, tmp_path, f"{pushed}:{__version__}", "--version", name="said")
    assert said.ended() == 0
    words = ("-r", lab.node.endpoint, "logs", "said")
    image = f"{pushed}:{__version__}-root"
    ran = start(lab, tmp_path, image, *words, on_the_node=True, name="logs")
    assert (ran.ended(), ran.output) == (0, f"pycrictl version {__version__}\n")


def test_each_image_has_its_list_of_contents(layout: Path) -> None:
    def blob(digest: str) -> Any:
        content = (layout / "blobs" / digest.replace(":", "/")).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest.partition(":")[2]
        return json.loads(content)

    index = json.loads((layout / "index.json").read_text())["manifests"]
    names = {each["annotations"]["org.opencontainers.image.ref.name"]: each for each in index}
    users = set()
    for tag in (__version__, f"{__version__}-root"):
        image = names[tag]
        config = blob(blob(image["digest"])["config"]["digest"])
        users.add(config["config"]["User"])
        assert config["config"]["Labels"]["org.opencontainers.image.version"] == __version__
        attached = blob(names[f"{image['digest'].replace(':', '-')}.sbom"]["digest"])
        assert attached["subject"]["digest"] == image["digest"]
        listed = blob(attached["layers"][0]["digest"])
        assert listed["bomFormat"] == "CycloneDX"
        parts = {part["purl"].partition("@")[0] for part in listed["components"]}
        assert parts >= {
            *("pkg:pypi/grpcio", "pkg:deb/debian/openssl", "pkg:deb/debian/python3.13"),
            *("pkg:deb/debian/zlib", "pkg:deb/debian/libc6", "pkg:deb/debian/ca-certificates"),
        }
    assert users == {f"{NONROOT}:{NONROOT}", "0:0"}
