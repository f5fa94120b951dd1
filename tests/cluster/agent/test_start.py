"""An agent's settings at the start, and files that change while it serves."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pycrictl.cluster.agent.trust import certificate
from tests.cli.run import Run
from tests.cluster.agent.program import running
from tests.cluster.agent.standing import Cluster, ask, bearer
from tests.waiting import wait_until

PULLS = "/apis/progress.pycrictl.dev/v1alpha1/imagepulls"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two certificates, a.pem and b.pem, with their keys, and files that are damaged or odd."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in "ab":
        pair = certificate.serving([name])
        Path(f"{name}.pem").write_bytes(pair.certificate)
        Path(f"{name}.key").write_bytes(pair.key)
    good = Path("a.pem").read_text()
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(256)))
    Path("half.pem").write_text(good + good.replace("\nM", "\n!", 1))
    Path("commented.pem").write_text(f"# Főtanúsítvány\n{good}")
    words = ["openssl", "ec", "-in", "a.key", "-out", "locked.key", "-aes128", "-passout"]
    subprocess.run([*words, "pass:secret"], check=True, capture_output=True)
    user = {"name": "u", "user": {"token": "x"}}
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    Path("kubeconfig").write_text(json.dumps({"clusters": [cluster], "users": [user]}))
    return folder


@pytest.fixture
def refused(files: Path) -> Iterator[list[str]]:
    """The arguments of a command that always fails, as its address is in use."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        yield ["agent", "--listen", address, "--kubeconfig", "kubeconfig"]


NO_CERTIFICATE = "is not a file of PEM certificates"
NO_PAIR = "are not a PEM certificate and its unencrypted key"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--peer-ca empty", f'--peer-ca "empty" {NO_CERTIFICATE}'),
        ("--peer-ca binary", f'--peer-ca "binary" {NO_CERTIFICATE}'),
        ("--peer-ca a.key", f'--peer-ca "a.key" {NO_CERTIFICATE}'),
        ("--peer-ca half.pem", f'--peer-ca "half.pem" {NO_CERTIFICATE}'),
        ("--peer-ca none", 'cannot read --peer-ca "none": no such file or directory'),
        (
            "--tls-cert binary --tls-key a.key",
            f'--tls-cert "binary" and --tls-key "a.key" {NO_PAIR}',
        ),
        ("--tls-cert a.pem --tls-key a.pem", f'--tls-cert "a.pem" and --tls-key "a.pem" {NO_PAIR}'),
        ("--tls-cert a.pem --tls-key b.key", f'--tls-cert "a.pem" and --tls-key "b.key" {NO_PAIR}'),
        (
            "--tls-cert a.pem --tls-key locked.key",
            f'--tls-cert "a.pem" and --tls-key "locked.key" {NO_PAIR}',
        ),
        ("--tls-cert a.pem --tls-key .", 'cannot read --tls-key ".": is a directory'),
        ("--tls-cert a.pem --tls-key a.key --peer-ca commented.pem", "cannot listen on "),
    ],
)
def test_certificates_that_are_none(refused: list[str], words: str, line: str) -> None:
    run = Run(*refused, "--node-name", "n1", *words.split())
    assert run.code == 1
    assert run.stderr.startswith(f"pycrictl: {line}")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["A b", "n_1", "-n", "n..1", "n.-1", "n/../x", "n" * 254])
def test_names_that_cannot_be(refused: list[str], name: str) -> None:
    for what, words, environ in (
        ("node (--node-name, else $NODE_NAME)", [f"--node-name={name}"], {}),
        ("node (--node-name, else $NODE_NAME)", [], {"NODE_NAME": name}),
        ("namespace (--peer-namespace)", ["--node-name=n1.a-b.c", f"--peer-namespace={name}"], {}),
    ):
        run = Run(*refused, *words, environ=environ)
        assert run.code == 1
        assert run.stderr.startswith(f'pycrictl: invalid name of a {what}: "{name[:40]}')
        assert len(run.stderr.splitlines()) == 1


def test_a_kubeconfig_that_is_replaced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its CA certificate is damaged, the agent must use the last good one."""
    monkeypatch.setattr("pycrictl.kube.apiclient.REREAD_S", 0.0)
    agent, file = cluster.start(), cluster.folder / "kubeconfig"
    good = file.read_text()
    path = "/api/v1/pods"
    (entry,) = json.loads(good)["clusters"]
    authority = entry["cluster"]["certificate-authority"]
    (cluster.folder / "damaged.pem").write_text(Path(authority).read_text()[:200])
    for text in (good.replace(authority, "damaged.pem"), good):
        file.write_text(text)
        assert cluster.loop.run(agent.api.get(path))["items"] == []


def served(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=30)


def test_certificates_that_are_replaced(
    cluster: Cluster,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pair that does not match must not end the agent, or keep it from learning whom to trust."""
    monkeypatch.setattr("pycrictl.cluster.agent.node_agent.CHECK_S", 0.05)
    (found,) = cluster.api.objects.documents("", "configmaps")
    nobody = {**found["data"], "requestheader-client-ca-file": "none"}
    cluster.api.objects.add("", "configmaps", {**found, "data": nobody})
    agent = cluster.start(
        waits=False,
        certificate_file=str(files / "a.pem"),
        key_file=str(files / "a.key"),
    )
    wait_until(lambda: agent.access.trust is not None)
    first = Path("a.pem").read_text()

    Path("a.pem").write_bytes(Path("b.pem").read_bytes())
    wait_until(lambda: 'certificate_kept error="--tls-cert' in caplog.text)
    authority = f"# Főtanúsítvány\n{found['data']['requestheader-client-ca-file']}"
    data = {**found["data"], "requestheader-client-ca-file": authority}
    cluster.api.objects.add("", "configmaps", {**found, "data": data})
    wait_until(agent.ready.is_set)
    assert cluster.get("imagepulls").status == 200
    assert served(agent.listener.address[1]) == first

    Path("a.key").write_bytes(Path("b.key").read_bytes())
    wait_until(lambda: served(agent.listener.address[1]) == Path("b.pem").read_text())
    assert cluster.ask("/livez").content == b"ok"


def test_the_kubelets_configuration_is_read(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("enableDebuggingHandlers: false\n")
    with running(cluster, "unix:///none", "--kubelet-config", str(file)) as program:
        address, path = ("127.0.0.1", program.port), "/imagePullProgress/default/web"
        assert ask(address, path, headers=bearer("of admin")).status == 405
        # The library that only issues certificates must not stay in memory.
        assert "cryptography" not in Path(f"/proc/{program.process.pid}/maps").read_text()
