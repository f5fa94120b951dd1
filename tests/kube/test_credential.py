"""The kubelet's credential: where kubelets keep it, and from a credential plugin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import ConfigError
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import (
    KUBECONFIGS,
    Printed,
    ask_plugin,
    find_credential,
    in_cluster,
    own_namespace,
    read_kubeconfig,
)
from pycrictl.kube.pods import list_pods
from pycrictl.node.kubelet import Kubelet
from tests.kube.access import User
from tests.kube.apiserver import NODE, ApiServer, write_kubeconfig
from tests.kube.tokens import Token
from tests.support.hostfiles import run_program
from tests.waiting import wait_until


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no kubeconfig of a kubelet was found$"):
        find_credential(tmp_path)


@pytest.mark.parametrize("path", KUBECONFIGS)
def test_each_place_and_the_node_of_the_certificate(
    api: ApiServer, tmp_path: Path, path: str
) -> None:
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path, path.lstrip("/"))
    found = find_credential(tmp_path)
    assert (found.origin, found.server) == (path, api.url)
    assert ApiClient(lambda: found, timeout_s=20.0).node == NODE
    assert found.certificate == Path(api.certificates.cert("client")).read_text()
    assert found.key == Path(api.certificates.key("client")).read_text()
    assert found.authority == Path(api.certificates.ca).read_text()
    assert "-----BEGIN" not in repr(found)


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
    found = find_credential(tmp_path)
    assert (found.certificate, found.key) == (both, both)
    assert found.authority == Path(api.certificates.ca).read_text()


def test_a_token_needs_the_hosts_name(api: ApiServer, tmp_path: Path) -> None:
    document = api.kubeconfig(inline=True)
    document["users"][0]["user"] = {"tokenFile": "/token"}
    (tmp_path / "token").write_text("s3cret\n")
    write_kubeconfig(document, tmp_path)
    run_program(tmp_path, 7, "kubelet", "--hostname-override=N9")
    found = find_credential(tmp_path)
    assert (found.token, found.node, found.certificate) == ("s3cret", "n9", "")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"server": "http://127.0.0.1:1"}, "names no server with an https URL"),
        ({"server": 7}, "names no server with an https URL"),
        ({"client_key_data": "%"}, "client-key-data is not base64"),
        ({"client_key_data": "", "client_key": "/missing.pem"}, 'cannot read "/missing.pem"'),
        ({"client_key_data": ""}, "has no credential"),
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
    found = in_cluster({**environ, "NODE_NAME": "n7"}, tmp_path)
    assert (found.server, found.token, found.authority, found.node) == (
        "https://10.96.0.1:6443", "s3cret", "PEM", "n7",
    )  # fmt: skip
    assert own_namespace(tmp_path) == "pycrictl"
    assert (
        in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server
        == "https://[fd00::1]:443"
    )
    assert "s3cret" not in repr(found)
    with pytest.raises(ConfigError, match="this is not a pod"):
        in_cluster({}, tmp_path)


def test_a_kubeconfig_that_is_named(tmp_path: Path, api: ApiServer) -> None:
    path = write_kubeconfig(api.kubeconfig(token="s3cret"), tmp_path)
    assert read_kubeconfig(str(path)).token == "s3cret"
    with pytest.raises(ConfigError, match="no such file"):
        read_kubeconfig(str(tmp_path / "nosuch"))


VERSION = "client.authentication.k8s.io/v1beta1"


def program(folder: Path, body: str) -> dict[str, Any]:
    path = folder / "get-token"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    path.chmod(0o755)
    env = [{"name": "REGION", "value": "eu-1"}]
    return {"apiVersion": VERSION, "command": "./get-token", "args": ["-i", "c"], "env": env}


def prints(**status: Any) -> str:
    return f"print({json.dumps({'kind': 'ExecCredential', 'status': status})!r})"


TOKEN = prints(token="s3cret")


def test_a_token(tmp_path: Path) -> None:
    body = "assert sys.argv[1:] == ['-i', 'c'] and os.environ['REGION'] == 'eu-1'\n"
    body += "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
    body += (
        f"assert (info['apiVersion'], info['spec']) == ({VERSION!r}, {{'interactive': False}})\n"
    )
    body += "assert sys.stdin.read() == ''\nprint('secret', file=sys.stderr)\n"
    assert ask_plugin(program(tmp_path, body + TOKEN), tmp_path, 30.0) == Printed("s3cret")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("sys.exit(3)", "gave no credential: it ended with 3"),
        ("print('[')", "printed no credential"),
        (prints(), "printed no credential"),
        (prints(clientCertificateData="C"), "printed no credential"),
    ],
)
def test_programs_that_print_none(
    tmp_path: Path, body: str, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    body = f"print('s3cret', file=sys.stderr)\n{body}"
    with pytest.raises(ConfigError, match=error) as caught:
        ask_plugin(program(tmp_path, body), tmp_path, 30.0)
    assert "s3cret" not in caught.value.message + capfd.readouterr().err


@pytest.mark.parametrize(
    ("plugin", "error"),
    [
        ({}, "names no command"),
        ({"command": "/no/such"}, 'cannot run "/no/such" for a credential: no such file'),
    ],
)
def test_programs_that_cannot_be_run(plugin: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=error):
        ask_plugin(plugin, tmp_path, 30.0)


def test_a_slow_program_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    body = "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
    body += "open('child', 'w').write(str(child.pid))\nchild.wait()"
    plugin = program(tmp_path, f"os.chdir({str(tmp_path)!r})\n{body}")
    with pytest.raises(ConfigError, match="gave no credential within 3s"):
        ask_plugin(plugin, tmp_path, 3.0)
    pid = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def kubeconfig(api: ApiServer, folder: Path, plugin: dict[str, Any]) -> Kubelet:
    document = api.kubeconfig(inline=True)
    document["users"][0]["user"] = {"exec": plugin}
    return Kubelet(kubeconfig=str(write_kubeconfig(document, folder, "kubeconfig")), hostname=NODE)


def test_the_kubeconfig_of_a_cloud(api: ApiServer, tmp_path: Path) -> None:
    kubelet = kubeconfig(api, tmp_path, program(tmp_path, TOKEN))
    found = find_credential(kubelet=kubelet)
    assert (found.token, found.node, found.certificate) == ("s3cret", NODE, "")
    assert "s3cret" not in repr(found)
    api.tokens["s3cret"] = Token(User(f"system:node:{NODE}", ("system:nodes",)))
    assert list_pods(ApiClient(lambda: found, timeout_s=20.0))


def test_below_another_root_nothing_is_run(api: ApiServer, tmp_path: Path) -> None:
    plugin = program(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    kubeconfig(api, tmp_path, plugin)
    with pytest.raises(ConfigError, match="gets its credential from a program of the node"):
        find_credential(tmp_path, Kubelet(kubeconfig="/kubeconfig"))
    assert not (tmp_path / "ran").exists()
