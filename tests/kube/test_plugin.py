"""A kubelet's credential from a credential plugin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import ConfigError
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import Printed, ask_plugin, find_credential
from pycrictl.kube.pods import list_pods
from pycrictl.node.kubelet import Kubelet
from tests.kube.access import User
from tests.kube.apiserver import NODE, ApiServer, write_kubeconfig
from tests.kube.tokens import Token
from tests.waiting import wait_until

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


def test_a_certificate(tmp_path: Path) -> None:
    plugin = program(tmp_path, prints(clientCertificateData="C", clientKeyData="K"))
    assert ask_plugin(plugin, tmp_path, 30.0) == Printed("", "C", "K")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("sys.exit(3)", "gave no credential: it ended with 3"),
        ("print('[')", "printed no credential"),
        ("print('[]')", "printed no credential"),
        (prints(), "printed no credential"),
        (prints(token=7), "printed no credential"),
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
        ({"command": "a\0b"}, "cannot run"),
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
