"""The manifests build with a real kubectl, and all references in them resolve."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pycrictl import __version__
from pycrictl.cli.argv import by_spelling
from pycrictl.cli.command_table import BY_NAME
from pycrictl.cli.tree import command_of
from pycrictl.cluster.agent.api.names import AUDIENCE, GROUP, PORT, SERVICE, VERSION
from pycrictl.cluster.kubectl import api_errors
from tests.support.manifests import (
    AUTHORITIES,
    OVERLAYS,
    WHOLE,
    Document,
    build,
    combined,
    container,
    leaves,
    object_of,
    template,
)


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest, run_folder: Path) -> list[Document]:
    return build(request.param, run_folder)


@pytest.mark.parametrize("names", [*WHOLE[::2], WHOLE[1]], ids="+".join)
def test_components_beside_each_other(names: list[str], run_folder: Path) -> None:
    """Combined in either order, each component changes all that it changes alone."""
    (authority,) = AUTHORITIES & {*names}
    base = leaves(combined([authority], run_folder))
    together = leaves(combined(names, run_folder))
    assert together == leaves(combined(names[::-1], run_folder))
    for name in {*names} - {authority}:
        own = leaves(combined([name, authority], run_folder))
        assert own - base <= together, name
        assert base - own <= base - together, name


@pytest.mark.parametrize("name", sorted(AUTHORITIES))
def test_the_api_server_verifies_the_agents(name: str, run_folder: Path) -> None:
    objects = combined([name], run_folder)
    for role in (item for item in objects if item["kind"] in ("Role", "ClusterRole")):
        assert not any("secrets" in rule.get("resources", ()) for rule in role["rules"])
    spec = object_of(objects, "APIService")["spec"]
    assert "insecureSkipTLSVerify" not in spec
    assert ("caBundle" in spec) == (name == "ca")
    if name == "ca":
        verify_certificate(
            base64.b64decode(spec["caBundle"]), object_of(objects, "Secret", "pycrictl-agent-tls")
        )
    else:
        annotations = object_of(objects, "APIService")["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "pycrictl/pycrictl-agent-tls"}
        made = object_of(objects, "Certificate", "pycrictl-agent-tls")["spec"]
        assert made["secretName"] == "pycrictl-agent-tls"
        assert made["dnsNames"] == ["pycrictl-agent.pycrictl.svc", "pycrictl-agent"]


def verify_certificate(authority: bytes, secret: Document) -> None:
    """Check that the CA issued the certificate, for the names that clients use."""
    certificate = {key: base64.b64decode(text) for key, text in secret["data"].items()}
    assert certificate["ca.crt"] == authority
    with TemporaryDirectory() as folder:
        for key in ("ca.crt", "tls.crt"):
            Path(folder, key).write_bytes(certificate[key])
        words = ["openssl", "verify", "-purpose", "sslserver", "-CAfile", "ca.crt"]
        for name in ("pycrictl-agent.pycrictl.svc", "pycrictl-agent"):
            verify = [*words, "-verify_hostname", name, "tls.crt"]
            subprocess.run(verify, cwd=folder, check=True, capture_output=True, timeout=60)


def test_who_scrapes_may_ask_for_the_figures_only(run_folder: Path) -> None:
    objects = combined(["metrics"], run_folder)
    (endpoint,) = object_of(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    secret = object_of(objects, "Secret", endpoint["authorization"]["credentials"]["name"])
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    binding = object_of(objects, "ClusterRoleBinding", "pycrictl-agent-metrics")
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    role = object_of(objects, "ClusterRole", binding["roleRef"]["name"])
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    (port,) = container(objects)["ports"]
    assert endpoint["port"] == port["name"]


def test_nothing_is_left_behind(objects: list[Document]) -> None:
    """An object in another namespace, or without the label, would outlive an uninstallation."""
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(names)) >= len(names) - 1  # RoleBindings in two namespaces
    for item in objects:
        is_own = item["metadata"].get("namespace") in (None, "pycrictl")
        is_reader = item.get("roleRef", {}).get("name", "").startswith("extension-apiserver")
        assert is_own or (is_reader and item["metadata"]["namespace"] == "kube-system")
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "pycrictl"


def test_every_name_is_there(objects: list[Document]) -> None:
    account = object_of(objects, "ServiceAccount")["metadata"]
    pod = template(objects)
    assert pod["spec"]["serviceAccountName"] == account["name"]
    for binding in (item for item in objects if item["kind"].endswith("Binding")):
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        if name != "extension-apiserver-authentication-reader":
            assert object_of(objects, kind, name)["rules"]
    labels = pod["metadata"]["labels"].items()
    service = object_of(objects, "Service")
    for selector in (
        service["spec"]["selector"],
        object_of(objects, "DaemonSet")["spec"]["selector"]["matchLabels"],
        object_of(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    api = object_of(objects, "APIService")
    assert api["metadata"]["name"] == f"{VERSION}.{GROUP}"
    assert (api["spec"]["group"], api["spec"]["version"]) == (GROUP, VERSION)
    assert service["metadata"]["name"] == SERVICE
    (token,) = (volume for volume in pod["spec"]["volumes"] if "projected" in volume)
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == AUDIENCE
    wanted = {key: service["metadata"][key] for key in ("name", "namespace")}
    assert api["spec"]["service"] == {**wanted, "port": service["spec"]["ports"][0]["port"]}


def test_every_port_is_the_agents(objects: list[Document]) -> None:
    agent = container(objects)
    (port,) = agent["ports"]
    (listen,) = (word for word in agent["args"] if word.startswith("--listen="))
    assert listen.endswith(f":{port['containerPort']}")
    assert port["containerPort"] == PORT
    named = [
        object_of(objects, "Service")["spec"]["ports"][0]["targetPort"],
        *(
            rule["ports"][0]["port"]
            for rule in object_of(objects, "NetworkPolicy")["spec"]["ingress"]
        ),
        *(agent[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness")),
        agent["readinessProbe"]["httpGet"]["port"],
    ]
    assert set(named) == {port["name"]}


def test_every_volume_is_mounted(objects: list[Document]) -> None:
    volumes = {volume["name"] for volume in template(objects)["spec"]["volumes"]}
    mounts = container(objects)["volumeMounts"]
    assert [mount["name"] for mount in mounts if mount["name"] not in volumes] == []
    assert volumes == {mount["name"] for mount in mounts}
    assert all(mount.get("readOnly") or mount["name"] == "copies" for mount in mounts)
    for word in container(objects)["args"]:
        if path := re.search(r"=(/.*)", word):
            assert any(path[1].startswith(mount["mountPath"] + "/") for mount in mounts)


def test_the_agent_has_few_privileges(objects: list[Document]) -> None:
    pod, security = template(objects)["spec"], container(objects)["securityContext"]
    added = security["capabilities"].get("add", [])
    is_copying = "--spool-dir=/var/lib/pycrictl/copies" in container(objects)["args"]
    assert security["capabilities"]["drop"] == ["ALL"]
    if is_copying:
        assert added == ["SYS_PTRACE", "DAC_OVERRIDE", "CHOWN", "FOWNER", "FSETID"]
    else:
        assert added == ["SYS_PTRACE"]
    assert pod["hostPID"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert not pod.get("hostNetwork")
    assert "privileged" not in security
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_users_role_is_the_one_that_errors_name(objects: list[Document]) -> None:
    role = object_of(objects, "ClusterRole", api_errors.VIEW_ROLE)
    assert {
        resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]
    } == {"imagepulls": ["get", "list", "watch"]}
    for kind in ("view", "edit", "admin"):
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{kind}"]


def test_the_agent_is_of_this_version_and_takes_its_words(objects: list[Document]) -> None:
    release = __version__.partition(".dev")[0]
    agent = container(objects)
    assert agent["image"] == f"ghcr.io/pycrictl/pycrictl:{release}"
    assert f"/tree/v{release}#" in api_errors.INSTALL
    command, *words = agent["args"]
    assert command == "agent"
    known = by_spelling(command_of(BY_NAME["agent"]).params)
    assert {word.partition("=")[0].lstrip("-") for word in words} <= known.keys()
