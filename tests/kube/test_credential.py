"""The kubelet's credential: where kubelets keep it, and in which forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import ConfigError
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import (
    KUBECONFIGS,
    find_credential,
    in_cluster,
    own_namespace,
    read_kubeconfig,
)
from tests.kube.apiserver import NODE, ApiServer, write_kubeconfig
from tests.support.hostfiles import run_program


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no kubeconfig of a kubelet was found$"):
        find_credential(tmp_path)


@pytest.mark.parametrize("path", KUBECONFIGS)
def test_each_place_and_the_node_of_the_certificate(
    api: ApiServer, tmp_path: Path, path: str
) -> None:
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path, path.lstrip("/"))
    credential = find_credential(tmp_path)
    assert (credential.origin, credential.server) == (path, api.url)
    assert ApiClient(lambda: credential, timeout_s=20.0).node == NODE
    assert credential.certificate == Path(api.certificates.cert("client")).read_text()
    assert credential.key == Path(api.certificates.key("client")).read_text()
    assert credential.authority == Path(api.certificates.ca).read_text()
    assert "-----BEGIN" not in repr(credential)


def test_what_the_running_kubelet_was_started_with_comes_first(
    api: ApiServer, tmp_path: Path
) -> None:
    write_kubeconfig({}, tmp_path)
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path, "srv/kubelet.conf")
    run_program(tmp_path, 7, "kubelet", "--kubeconfig", "/srv/kubelet.conf")
    assert find_credential(tmp_path).origin == "/srv/kubelet.conf"


def test_files_beside_the_kubeconfig_and_links_within_the_root(
    api: ApiServer, tmp_path: Path
) -> None:
    both = "".join(
        Path(path).read_text()
        for path in (api.certificates.cert("client"), api.certificates.key("client"))
    )
    pki = tmp_path / "var/lib/kubelet/pki"
    pki.mkdir(parents=True)
    (pki / "kubelet-client-1.pem").write_text(both)
    (pki / "kubelet-client-current.pem").symlink_to("/var/lib/kubelet/pki/kubelet-client-1.pem")
    (tmp_path / "etc/kubernetes").mkdir(parents=True)
    (tmp_path / "etc/kubernetes/ca.crt").write_text(Path(api.certificates.ca).read_text())
    document = api.kubeconfig(
        client_certificate="/var/lib/kubelet/pki/kubelet-client-current.pem",
        client_key="/var/lib/kubelet/pki/kubelet-client-current.pem",
    )
    document["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    write_kubeconfig(document, tmp_path)
    credential = find_credential(tmp_path)
    assert (credential.certificate, credential.key) == (both, both)
    assert credential.authority == Path(api.certificates.ca).read_text()


def test_a_token_needs_the_hosts_name(api: ApiServer, tmp_path: Path) -> None:
    document = api.kubeconfig(inline=True)
    document["users"][0]["user"] = {"tokenFile": "/token"}
    (tmp_path / "token").write_text("s3cret\n")
    write_kubeconfig(document, tmp_path)
    run_program(tmp_path, 7, "kubelet", "--hostname-override=N9")
    credential = find_credential(tmp_path)
    assert (credential.token, credential.node, credential.certificate) == ("s3cret", "n9", "")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"server": "http://127.0.0.1:1"}, "names no server with an https URL"),
        ({"server": 7}, "names no server with an https URL"),
        ({"client_key_data": "%"}, "client-key-data is not base64"),
        ({"client_key_data": "", "client_key": "/missing.pem"}, 'cannot read "/missing.pem"'),
        ({"client_key_data": ""}, "has no certificate or token$"),
    ],
)
def test_kubeconfigs_that_cannot_be_used(
    api: ApiServer, tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    write_kubeconfig(api.kubeconfig(inline=True, **changes), tmp_path)
    with pytest.raises(ConfigError, match=error):
        find_credential(tmp_path)


def test_the_credential_of_a_pod(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ConfigError, match="cannot read"):
        in_cluster(environ, tmp_path)
    assert own_namespace(tmp_path) == ""
    for name, text in (("token", "s3cret\n"), ("ca.crt", "PEM"), ("namespace", "pycrictl")):
        (tmp_path / name).write_text(text)
    credential = in_cluster({**environ, "NODE_NAME": "n7"}, tmp_path)
    assert (credential.server, credential.token, credential.authority, credential.node) == (
        "https://10.96.0.1:6443", "s3cret", "PEM", "n7",
    )  # fmt: skip
    assert own_namespace(tmp_path) == "pycrictl"
    assert (
        in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server
        == "https://[fd00::1]:443"
    )
    assert "s3cret" not in repr(credential)
    with pytest.raises(ConfigError, match="this is not a pod"):
        in_cluster({}, tmp_path)


def test_a_kubeconfig_that_is_named(tmp_path: Path, api: ApiServer) -> None:
    path = write_kubeconfig(api.kubeconfig(token="s3cret"), tmp_path)
    assert read_kubeconfig(str(path)).token == "s3cret"
    with pytest.raises(ConfigError, match="no such file"):
        read_kubeconfig(str(tmp_path / "nosuch"))


def test_a_credential_from_a_program_is_refused_in_one_line(api: ApiServer, tmp_path: Path) -> None:
    document = api.kubeconfig(inline=True)
    document["users"][0]["user"] = {"exec": {"command": f"touch {tmp_path}/ran"}}
    write_kubeconfig(document, tmp_path)
    with pytest.raises(ConfigError, match=r"no certificate or token but names a program \(exec\)"):
        find_credential(tmp_path)
    assert not (tmp_path / "ran").exists()
