"""An agent's settings at the start, and files that change while it serves."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pycrictl.cluster.agent.asyncapi import AsyncApiClient
from pycrictl.kube.credential import read_kubeconfig
from tests.cli.run import Run
from tests.cluster.agent.program import running
from tests.cluster.agent.standing import Cluster, ask
from tests.kube.access import Grant
from tests.serving import Handler, serving
from tests.streams.servers import make_certificates
from tests.waiting import wait_until

PODS = "/apis/progress.pycrictl.dev/v1alpha1/namespaces/default/pods"
SPEC = b'{"spec": {"direction": "From", "path": "/etc/hostname", "container": "main"}}'


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Certificates with their keys: two of agents, a.pem and b.pem, one of another name, c.pem; and
    files that are damaged or odd."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    names = {"a": "DNS:pycrictl-agent", "b": "DNS:pycrictl-agent", "c": "DNS:another"}
    for name, server_name in names.items():
        (folder / name).mkdir()
        made = make_certificates(folder / name, server_name)
        shutil.copy(made.cert("server"), f"{name}.pem")
        shutil.copy(made.key("server"), f"{name}.key")
        shutil.copy(made.ca, f"{name}-ca.pem")
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
    ("files_of", "line"),
    [
        ("a.pem a.key empty", f'--peer-ca "empty" {NO_CERTIFICATE}'),
        ("a.pem a.key binary", f'--peer-ca "binary" {NO_CERTIFICATE}'),
        ("a.pem a.key half.pem", f'--peer-ca "half.pem" {NO_CERTIFICATE}'),
        ("a.pem a.key none", 'cannot read --peer-ca "none": no such file or directory'),
        ("binary a.key a.pem", f'--tls-cert "binary" and --tls-key "a.key" {NO_PAIR}'),
        ("a.pem a.pem a.pem", f'--tls-cert "a.pem" and --tls-key "a.pem" {NO_PAIR}'),
        ("a.pem b.key a.pem", f'--tls-cert "a.pem" and --tls-key "b.key" {NO_PAIR}'),
        ("a.pem locked.key a.pem", f'--tls-cert "a.pem" and --tls-key "locked.key" {NO_PAIR}'),
        ("a.pem . a.pem", 'cannot read --tls-key ".": is a directory'),
        ("c.pem c.key a.pem", '--tls-cert "c.pem" cannot be used: Hostname mismatch'),
        ("a.pem a.key commented.pem", "cannot listen on "),
    ],
)
def test_certificates_that_are_none(refused: list[str], files_of: str, line: str) -> None:
    certificate, key, ca = files_of.split()
    words = f"--node-name n1 --tls-cert {certificate} --tls-key {key} --peer-ca {ca}"
    run = Run(*refused, *words.split())
    assert run.code == 1
    assert run.stderr.startswith(f"pycrictl: {line}")
    assert len(run.stderr.splitlines()) == 1


def test_there_is_no_agent_without_certificates(refused: list[str]) -> None:
    run = Run(*refused, "--node-name", "n1")
    missing = 'cannot read --tls-cert "/etc/pycrictl-agent/tls.crt": no such file or directory'
    assert (run.code, run.stderr) == (1, f"pycrictl: {missing}\n")


def test_a_kubeconfig_that_is_replaced(cluster: Cluster) -> None:
    """While its CA certificate is damaged, the agent must use the last good one."""
    file = cluster.folder / "kubeconfig"
    good = file.read_text()
    (entry,) = json.loads(good)["clusters"]
    authority = entry["cluster"]["certificate-authority"]
    (cluster.folder / "damaged.pem").write_text(Path(authority).read_text()[:200])

    async def list_pods() -> None:
        api = AsyncApiClient(lambda: read_kubeconfig(str(file)), reread_s=0.0)
        for text in (good, good.replace(authority, "damaged.pem"), good):
            file.write_text(text)
            assert (await api.get("/api/v1/pods"))["items"] == []
        await api.close()

    cluster.loop.run(list_pods())


def served(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=30)


def test_certificates_that_are_replaced(
    cluster: Cluster, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pair that does not match must not end the agent, or keep it from learning whom to trust."""
    (config_map,) = cluster.api.objects.documents("", "configmaps")
    nobody = {**config_map["data"], "requestheader-client-ca-file": "none"}
    cluster.api.objects.add("", "configmaps", {**config_map, "data": nobody})
    agent = cluster.start(
        waits=False,
        check_s=0.05,
        certificate_file="a.pem",
        key_file="a.key",
        peer_ca_file="a-ca.pem",
    )
    wait_until(lambda: agent.access.trust is not None)
    first = Path("a.pem").read_text()

    shutil.copy("b.pem", "a.pem")
    wait_until(lambda: 'certificate_kept error="--tls-cert' in caplog.text)
    authority = f"# Főtanúsítvány\n{config_map['data']['requestheader-client-ca-file']}"
    data = {**config_map["data"], "requestheader-client-ca-file": authority}
    cluster.api.objects.add("", "configmaps", {**config_map, "data": data})
    wait_until(agent.ready.is_set)
    assert cluster.get("imagepulls").status == 200
    assert served(agent.listener.address[1]) == first

    shutil.copy("b.key", "a.key")
    wait_until(lambda: served(agent.listener.address[1]) == Path("b.pem").read_text())
    assert cluster.ask("/livez").content == b"ok"


def test_agents_verify_each_other_by_a_ca_that_may_be_replaced(
    cluster: Cluster, files: Path
) -> None:
    """Nobody in an agent's place, with a certificate of another CA, gets the token."""
    got: list[str] = []

    class Impostor(Handler):
        def do_GET(self) -> None:
            got.append(self.headers["Authorization"])
            self.send(503, b"")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("b.pem", "b.key")
    with serving(Impostor, context) as port:
        shutil.copy("a-ca.pem", "ca.pem")
        agent = cluster.start(check_s=0.05, peer_ca_file=str(files / "ca.pem"))
        cluster.add_endpoint("n2", port)
        cluster.add_pod("db", node="n2")
        (item,) = cluster.get("imagepulls").document["items"]
        assert "cannot be reached" in item["status"]["error"]
        assert (agent.peers.asked > 0, got) == (True, [])
        shutil.copy("b-ca.pem", "ca.pem")

        def is_asked() -> bool:
            cluster.get("imagepulls")
            return bool(got)

        wait_until(is_asked)


def test_the_kubelets_configuration_is_read(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("enableDebuggingHandlers: false\n")
    cluster.add_pod("web")
    grant = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
    cluster.api.grants.append(Grant("jane", [grant]))
    with running(cluster, "unix:///none", "--kubelet-config", str(file)) as program:
        address, path = ("127.0.0.1", program.port), f"{PODS}/web/containercopies"
        answer = ask(address, path, cluster.front_proxy, {"X-Remote-User": "jane"}, "POST", SPEC)
        assert (answer.status, answer.document["message"]) == (405, "Debug endpoints are disabled.")
