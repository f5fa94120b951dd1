"""The agent on a node with CRI-O, in a container like that of ``packaging/kubernetes/cri-o``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pycrictl._proto import cri_pb2
from tests.e2e.node.kubelet import RUNTIME, Pod
from tests.e2e.node.lab import MIB
from tests.support.manifests import manifests
from tests.waiting import wait_until

from .agents import NAME, PORT, Agents, is_ready
from .cluster import OTHER_ADDRESS, Cluster
from .crio import CriO

ROOT = Path(__file__).parents[3]
NODE = "crio"


@pytest.fixture
def crio(cluster: Cluster) -> Iterator[CriO]:
    if not (cluster.programs / "crio").exists():
        pytest.skip("there is no crio among the programs")
    lab = cluster.lab
    pause, registry = lab.reference(lab.pause), lab.registry.host
    with CriO(cluster.programs, lab.folder, pause, registry) as runtime:
        yield runtime


@pytest.fixture
def agents(cluster: Cluster) -> Iterator[Agents]:
    agents = Agents(cluster)
    agents.install()
    with cluster.node(NODE, OTHER_ADDRESS):
        yield agents
    agents.remove()


def template(cluster: Cluster) -> dict[str, Any]:
    whole = cluster.kubectl.good("kustomize", str(manifests(cluster.folder) / "cri-o"))
    (daemon_set,) = (
        document for document in yaml.safe_load_all(whole) if document["kind"] == "DaemonSet"
    )
    return dict(daemon_set["spec"]["template"]["spec"])


def start(cluster: Cluster, crio: CriO, agents: Agents) -> None:
    """Run the agent as the kubelet would run the pod, on the host's network."""
    spec = template(cluster)
    (container,) = spec["containers"]
    security = container["securityContext"]
    capabilities = security["capabilities"]
    kubelet, lab = crio.kubelet, cluster.lab
    image = lab.reference(lab.busybox)
    kubelet.pull(image)
    config = kubelet.pod_config(NAME, log_directory=str(crio.folder / "logs"))
    options = config.linux.security_context.namespace_options
    options.pid = cri_pb2.NODE if spec["hostPID"] else cri_pb2.CONTAINER
    pod = kubelet.run_pod(config)
    token = crio.folder / "token"
    token.mkdir()
    (token / "token").write_text(agents.peer_token.read_text())
    own = {"runtime": crio.sockets, "proxy": crio.folder / "none", "peer-token": token}
    own["tls"] = manifests(cluster.folder) / "components/ca"
    mounts = [(str(own[mount["name"]]), mount["mountPath"]) for mount in container["volumeMounts"]]
    machine = {"/usr", "/lib", "/lib64", "/bin", str(ROOT), sys.prefix, sys.base_prefix}
    files = (str(agents.kubeconfig), cluster.pki.ca)
    shown = [path for path in (*sorted(machine), *files) if Path(path).exists()]
    mounts += [(os.path.realpath(path), path) for path in shown]
    words = [f"--listen={OTHER_ADDRESS}:{PORT}", f"--node-name={NODE}", f"--kubeconfig={files[0]}"]
    unconfined, default = (
        cri_pb2.SecurityProfile(profile_type=getattr(cri_pb2.SecurityProfile, profile))
        for profile in ("Unconfined", "RuntimeDefault")
    )
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert security["appArmorProfile"]["type"] == "Unconfined"
    assert (spec["securityContext"]["runAsUser"], spec.get("hostNetwork")) == (0, None)
    more = cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=container["name"]),
        image=cri_pb2.ImageSpec(image=image, user_specified_image=image),
        command=[sys.executable, "-m", "pycrictl"],
        args=[
            "agent",
            *words,
            "--peer-namespace=pycrictl",
        ],
        envs=[
            cri_pb2.KeyValue(key="PYTHONPATH", value=bytes(ROOT)),
            cri_pb2.KeyValue(key="PATH", value=b"/nowhere"),
        ],
        log_path="agent.log",
        mounts=[
            cri_pb2.Mount(host_path=path, container_path=place, readonly=True)
            for path, place in mounts
        ],
        linux=cri_pb2.LinuxContainerConfig(
            security_context=cri_pb2.LinuxContainerSecurityContext(
                namespace_options=options,
                run_as_user=cri_pb2.Int64Value(value=0),
                capabilities=cri_pb2.Capability(
                    drop_capabilities=capabilities["drop"], add_capabilities=capabilities["add"]
                ),
                readonly_rootfs=security["readOnlyRootFilesystem"],
                no_new_privs=not security["allowPrivilegeEscalation"],
                seccomp=default,
                apparmor=unconfined,
            )
        ),
    )
    request = cri_pb2.CreateContainerRequest(
        pod_sandbox_id=pod.id, sandbox_config=pod.config, config=more
    )
    made = kubelet.call(RUNTIME + "CreateContainer", request, cri_pb2.CreateContainerResponse)
    kubelet.start_container(made.container_id)
    log = crio.folder / "logs/agent.log"
    wait_until(lambda: is_ready(OTHER_ADDRESS), log=log)
    agents.publish(NODE, OTHER_ADDRESS)
    wait_until(lambda: cluster.kubectl("get", "imagepulls").returncode == 0, log=log)


def test_a_pull_of_crio(cluster: Cluster, crio: CriO, agents: Agents) -> None:
    start(cluster, crio, agents)
    lab, kubectl = cluster.lab, cluster.kubectl
    image = lab.layout.image("far:1", lab.layout.random_layers([9 * MIB, 5 * MIB], seed=1210))
    reference = lab.push(image)
    cluster.run_pod("far", reference, node=NODE)
    cluster.let_wait("far", reference, OTHER_ADDRESS)
    lab.registry.limit(image.layers_bytes / 40)
    with kubectl.running("get", "imagepulls", "-w") as watch:
        pull = crio.kubelet.start_pull(reference)
        wait_until(lambda: status_of(cluster).get("progressBytes", 0) > MIB)
        seen = status_of(cluster)
        assert seen["phase"] == "Pulling", seen
        assert MIB < seen["progressBytes"] < seen["totalBytes"], seen
        assert len(seen["layers"]) == 2
        pull.result()
        wait_until(lambda: status_of(cluster)["phase"] == "Succeeded")
        watch.terminate()
        assert watch.stdout is not None
        shown = watch.stdout.read()
        percents = [int(match) for match in re.findall(r" (\d+)% ", shown)]
    assert percents == sorted(percents), shown
    assert len(set(percents)) > 5, shown


def status_of(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.kubectl.document("get", "imagepull", "far.c0")["status"])


def test_a_container_of_a_loaded_image(cluster: Cluster, crio: CriO) -> None:
    """From a containerd by an archive to CRI-O, by skopeo, and back."""
    lab, archive = cluster.lab, crio.folder / "image.tar"
    endpoint = f"unix://{crio.sockets}/crio.sock"
    config = crio.kubelet.pod_config("loaded")
    config.linux.security_context.namespace_options.pid = cri_pb2.CONTAINER
    pod = crio.kubelet.run_pod(config)
    for form in ("oci", "docker"):
        reference = lab.push(lab.image(f"{form}:1", MIB))
        lab.node.kubelet.pull(reference)
        program(lab.node.endpoint, "save", reference, "--format", form, "-o", archive)
        new = f"registry.example/{form}:2"
        assert program(endpoint, "load", "-i", archive) == f"{reference}\n"
        program(endpoint, "tag", reference, new)
        for name in (reference, new):
            assert exit_code(crio, pod, name) == 0
        program(endpoint, "save", new, "--format", form, "-o", archive)
        assert program(lab.node.endpoint, "load", "-i", archive) == f"{new}\n"


def exit_code(crio: CriO, pod: Pod, image: str) -> int:
    """Run a container of an image to its end."""
    more = cri_pb2.ContainerConfig(image=cri_pb2.ImageSpec(user_specified_image=image))
    container = crio.kubelet.create_container(pod, image, ["true"], more=more)
    crio.kubelet.start_container(container)
    wait_until(lambda: crio.kubelet.state(container) == cri_pb2.CONTAINER_EXITED)
    code: int = crio.kubelet.ask("ContainerStatus", container_id=container).status.exit_code
    return code


def program(endpoint: str, *words: str | Path) -> str:
    whole = [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", endpoint, *words]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout
