"""The image, pulled from a registry and run by a real containerd, as nodes run it."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from pycrictl import __version__
from pycrictl._proto import cri_pb2
from tests.cluster.agent.standing import Cluster, standing
from tests.e2e.node.lab import Lab
from tests.kube.apiserver import make_node_certificates
from tests.packaging.building import ROOT, Layout, built, needs_old_c_library, unpack
from tests.packaging.installing import QEMU, emulated
from tests.support.slow_pulls import SLOW_S, slow_image
from tests.waiting import wait_until

NONROOT = 65532


@pytest.fixture(scope="module")
def layout(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    (archive,) = released.glob("pycrictl-*-image-amd64.tar")
    return Layout(archive, tmp_path_factory.mktemp("layout"))


@pytest.fixture
def pushed(layout: Layout, lab: Lab) -> str:
    for tag in (__version__, f"{__version__}-root"):
        words = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"]
        name = f"docker://{lab.registry.pushed_to}/pycrictl:{tag}"
        subprocess.run([*words, f"oci:{layout.folder}:{tag}", name], check=True)
    return f"{lab.registry.host}/pycrictl"


@pytest.fixture
def cluster(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing(make_node_certificates(run_folder), tmp_path) as made:
        yield made


class Ran:
    def __init__(self, lab: Lab, container: str, log: Path) -> None:
        self._lab = lab
        self._container = container
        self._log = log

    @property
    def output(self) -> str:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        parts = [line.split(" ", 3) for line in lines]
        return "".join(text + ("\n" if tag == "F" else "") for _, _, tag, text in parts)

    def ended(self) -> int:
        wait_until(lambda: self._status().state == cri_pb2.CONTAINER_EXITED)
        status: int = self._status().exit_code
        wait_until(lambda: self.output or status == 0)
        return status

    def _status(self) -> Any:
        answer = self._lab.node.kubelet.ask("ContainerStatus", container_id=self._container)
        return answer.status


def start(
    lab: Lab,
    folder: Path,
    image: str,
    *words: str,
    on_the_node: bool = False,
    name: str = "main",
    more: cri_pb2.ContainerConfig | None = None,
) -> Ran:
    """Run the image's program with these arguments in a pod, or as `kubectl debug node` does."""
    kubelet = lab.node.kubelet
    kubelet.pull(image)
    logs = folder / name
    logs.mkdir()
    of_pod = kubelet.pod_config(f"image-{name}", log_directory=str(logs))
    if on_the_node:
        options = of_pod.linux.security_context.namespace_options
        options.pid = options.ipc = cri_pb2.NODE
        of_pod.linux.security_context.privileged = True  # --profile=sysadmin
    pod = kubelet.run_pod(of_pod)
    config = cri_pb2.ContainerConfig(args=words)
    if on_the_node:
        config.linux.security_context.privileged = True
        config.mounts.add(container_path="/host", host_path="/")
    if more is not None:
        config.MergeFrom(more)
    made = kubelet.create_container(pod, image, (), name=name, log_path="0.log", more=config)
    kubelet.start_container(made)
    return Ran(lab, made, logs / "0.log")


def test_in_a_debug_pod_of_the_node(lab: Lab, pushed: str, tmp_path: Path) -> None:
    image = f"{pushed}:{__version__}-root"
    kubelet = lab.node.kubelet
    container = lab.container(kubelet.run_pod("sessions"))
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
    assert start(lab, tmp_path, f"{pushed}:{__version__}", "--version", name="said").ended() == 0
    assert run("logs", "logs", "said") == (0, f"pycrictl version {__version__}\n")
    _, reference = slow_image(lab, "image:watched", seed=990, seconds=SLOW_S)
    pull = kubelet.start_pull(reference)
    wait_until(lab.node.store.ingests)
    words = ("image-pull-progress", "--progress", "plain")
    watch = start(lab, tmp_path, image, *at, *words, on_the_node=True, name="progress")
    wait_until(lambda: "image" in watch.output, log=tmp_path / "progress" / "0.log")
    lab.registry.limit(None)
    assert watch.ended() == 0
    pull.result()


def test_the_agent_serves_as_in_the_manifests(
    lab: Lab, pushed: str, cluster: Cluster, tmp_path: Path
) -> None:
    text = (ROOT / "packaging/kubernetes/base/daemonset.yaml").read_text("utf-8")
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    rights = agent["securityContext"]
    kubeconfig = cluster.api.kubeconfig(
        inline=True, token="api-token", client_certificate_data="", client_key_data=""
    )
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    secrets, runtime = "/var/run/secrets/progress.pycrictl.dev", "/run/containerd"
    tls = "/etc/pycrictl-agent"
    assert {secrets, runtime, tls} < {mount["mountPath"] for mount in agent["volumeMounts"]}
    agents, files = cluster.api.agents, tmp_path / "tls"
    files.mkdir()
    paths = {"tls.crt": agents.cert("server"), "tls.key": agents.key("server"), "ca.crt": agents.ca}
    for name, path in paths.items():
        (files / name).write_bytes(Path(path).read_bytes())
    socket = Path(lab.node.endpoint.removeprefix("unix://"))
    mounts = [
        cri_pb2.Mount(container_path=place, host_path=str(folder), readonly=True)
        for place, folder in ((secrets, tmp_path), (runtime, socket.parent), (tls, files))
    ]
    context = cri_pb2.LinuxContainerSecurityContext(
        run_as_user=cri_pb2.Int64Value(value=pod["securityContext"]["runAsUser"]),
        run_as_group=cri_pb2.Int64Value(value=pod["securityContext"]["runAsGroup"]),
        readonly_rootfs=rights["readOnlyRootFilesystem"],
        no_new_privs=not rights["allowPrivilegeEscalation"],
        capabilities=cri_pb2.Capability(drop_capabilities=rights["capabilities"]["drop"]),
        seccomp=cri_pb2.SecurityProfile(
            profile_type=cri_pb2.SecurityProfile.ProfileType.RuntimeDefault
        ),
    )
    more = cri_pb2.ContainerConfig(
        command=agent["command"],
        envs=[cri_pb2.KeyValue(key="NODE_NAME", value=b"n1")],
        mounts=mounts,
        linux=cri_pb2.LinuxContainerConfig(security_context=context),
    )
    here = ("--listen=127.0.0.1:0", f"--kubeconfig={secrets}/kubeconfig")
    image = f"{pushed}:{__version__}"
    ran = start(lab, tmp_path, image, *agent["args"], *here, name="agent", more=more)
    served = re.compile(r"serving address=127\.0\.0\.1:(\d+) ")
    wait_until(lambda: served.search(ran.output), log=tmp_path / "agent" / "0.log")
    port = int(served.findall(ran.output)[0])

    def asked(path: str) -> tuple[int, bytes]:
        context = ssl._create_unverified_context()
        with closing(HTTPSConnection("127.0.0.1", port, context=context, timeout=30)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    assert asked("/livez") == (200, b"ok")
    wait_until(lambda: asked("/readyz")[0] == 200, log=tmp_path / "agent" / "0.log")
    cluster.stand_behind(port)
    cluster.add_pod("web")
    assert "web" in cluster.kubectl().good("get", "imagepulls")


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_modules_of_the_image_need_no_newer_c_library(
    architecture: str, released: Path, tmp_path: Path
) -> None:
    layout = Layout(built(released, f"pycrictl-*-image-{architecture}.tar"), tmp_path / "layout")
    for blob in (layout.folder / "blobs" / "sha256").iterdir():
        if tarfile.is_tarfile(blob):
            unpack(blob, tmp_path)
    folder = tmp_path / "usr/lib/pycrictl"
    names = {file.name.partition(".")[0] for file in folder.rglob("*.so")}
    assert names >= {"_http_parser", "_multidict", "cygrpc"}
    assert sum(needs_old_c_library(file) for file in folder.rglob("*.so")) > 10
    licensed = {text.parent.name for text in (folder / "licenses").rglob("*") if text.is_file()}
    pins = (ROOT / "packaging/image/modules.txt").read_text("utf-8")
    assert licensed >= {*re.findall(r"^([\w-]+)==", pins, re.MULTILINE)}


def test_the_image_for_aarch64(released: Path, tmp_path: Path) -> None:
    layout = Layout(built(released, "*-image-arm64.tar"), tmp_path / "layout")
    image = layout.read(layout.tagged()[__version__])
    layers = [shlex.quote(str(layout.blob(layer))) for layer in image["layers"]]
    unpack = "\n".join(f"tar -C root -xzf {layer}" for layer in layers)
    place = tmp_path / "place"
    place.mkdir()
    with emulated(place, f"mkdir root\n{unpack}") as root:
        version = root.run(QEMU, "/usr/bin/pycrictl", "--version")
        assert (version.stdout, version.stderr) == (f"pycrictl version {__version__}\n", "")
        for name in ("proxy", "agent"):
            shown = root.run(QEMU, "/usr/bin/pycrictl", name, "--help")
            assert shown.stdout.startswith(f"Usage: pycrictl {name} "), shown.stderr


def described(layout: Layout, image: dict[str, Any]) -> tuple[Any, Any]:
    """Return the configuration of an image, and the list of contents attached to it."""
    attached = layout.read(layout.tagged()[f"{image['digest'].replace(':', '-')}.sbom"])
    assert attached["subject"]["digest"] == image["digest"]
    return layout.read(layout.read(image)["config"]), attached["layers"][0]


def test_each_image_has_its_list_of_contents(layout: Layout) -> None:
    users = set()
    for tag in (__version__, f"{__version__}-root"):
        whole, contents = described(layout, layout.tagged()[tag])
        config = whole["config"]
        users.add(config["User"])
        assert config["Labels"]["org.opencontainers.image.version"] == __version__
        listed = layout.read(contents)
        assert listed["bomFormat"] == "CycloneDX"
        parts = {part["purl"].partition("@")[0] for part in listed["components"]}
        assert parts >= {
            "pkg:pypi/grpcio", "pkg:deb/debian/openssl", "pkg:deb/debian/python3.13",
            "pkg:pypi/aiohttp",
            "pkg:deb/debian/zlib", "pkg:deb/debian/libffi", "pkg:deb/debian/xz-utils",
            "pkg:deb/debian/gcc-10", "pkg:deb/debian/libc6", "pkg:deb/debian/ca-certificates",
        }  # fmt: skip
    assert users == {f"{NONROOT}:{NONROOT}", "0:0"}
