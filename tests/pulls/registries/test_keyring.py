"""The order of credentials, and those of the kubelet."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.node.kubelet import Kubelet
from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries import keyring
from pycrictl.pulls.registries.credentials import Credentials
from pycrictl.pulls.registries.keyring import Keyring, ProviderPlugins, keyring_of
from tests.support.hostfiles import run_program, write

IMAGE = parse("r.test/a:1")


def auths(user: str, host: str = "r.test") -> dict[str, Any]:
    return {"auths": {host: {"username": user, "password": "hush"}}}


class Bench:
    """A keyring of a user and of a node without a kubelet, and what it warns of."""

    def __init__(self, environ: Mapping[str, str], authfile: str = "", config: str = "") -> None:
        self.warnings: list[str] = []
        self.keyring = keyring_of(environ, self.warnings.append, authfile, config)

    def user(self, name: str = "r.test/a:1") -> str:
        login = self.keyring.find(parse(name))
        return "" if login is None else login.credentials.username


def test_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("authfile", "config", "registry-auth-file", "kubelet")
    files = {name: write(tmp_path / name / "config.json", auths(name)) for name in names}
    environ = {"REGISTRY_AUTH_FILE": files["registry-auth-file"]}
    monkeypatch.setattr(keyring, "_KUBELET_ROOT", str(tmp_path / "kubelet"))
    monkeypatch.setattr(keyring, "find_kubelet", lambda root: Kubelet())
    folder = str(tmp_path / "config")
    assert Bench(environ, files["authfile"], folder).user() == "authfile"
    assert Bench(environ, "", folder).user() == "config"
    assert Bench(environ, "", files["config"]).user() == "config"
    assert Bench({**environ, "DOCKER_CONFIG": folder}).user() == "config"
    assert Bench(environ).user() == "registry-auth-file"
    assert Bench({}).user() == "kubelet"
    # One that does not have the registry is passed over.
    other = write(tmp_path / "other.json", auths("other", "o.test"))
    caplog.set_level(logging.DEBUG, "pycrictl.registries")
    assert Bench({}, other).user() == "kubelet"
    assert [record.getMessage() for record in caplog.records] == [
        f"credentials for r.test/a: none in {other}",
        f"credentials for r.test/a: {files['kubelet']}",
    ]
    assert "hush" not in caplog.text
    assert Bench({}, other).user("none.test/a") == ""


def test_a_broken_file_that_the_user_named_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        Bench({"REGISTRY_AUTH_FILE": str(tmp_path / "none")}).user()


def test_a_broken_place_of_the_node_is_a_warning() -> None:
    class Broken:
        name, is_given = "broken", False

        def find(self, reference: object) -> None:
            raise ConfigError("it is broken")

    warnings: list[str] = []
    assert Keyring([Broken()], warnings.append).find(IMAGE) is None
    assert warnings == ["it is broken"]


def test_the_kubelet_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "--root-dir=/k --image-credential-provider-config /p --image-credential-provider-bin-dir=/b"
    )
    run_program(tmp_path, 7, "kubelet", *words.split())
    (tmp_path / "proc/7/environ").write_bytes(b"HOME=/home\0")
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/self").mkdir()
    monkeypatch.setattr(noderoot, "_root", str(tmp_path))
    write(tmp_path / "home/.docker/config.json", auths("home"))
    bench = Bench({})
    assert bench.user() == "home"
    write(tmp_path / "k/config.json", auths("root"))
    assert Bench({}).user() == "root"
    assert bench.user("o.test/a") == ""
    assert bench.warnings == ["the kubelet's plugins (/p) are not run from another root"]


# Credential provider plugins

PLUGIN = """#!/bin/sh
echo run >>{log}
cat >{log}.request
case "$MODE" in
  fail) echo 'no role' >&2; exit 3 ;;
  odd) echo '[]' ;;
  slow) exec sleep 60 ;;
  *) cat <<END
{{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
 "cacheKeyType": "$1", "cacheDuration": "0s",
 "auth": {{"*.test": {{"username": "$MODE$HOME", "password": "hush"}}}}}}
END
esac
"""


class Plugins:
    """A plugin for ``*.test``, its configuration, and its runs."""

    def __init__(self, folder: Path, mode: str = "me", **more: Any) -> None:
        self.log = folder / "log"
        program = folder / "bin/ecr"
        write(program, PLUGIN.format(log=self.log))
        program.chmod(0o755)
        provider = {
            "name": "ecr",
            "matchImages": ["*.test"],
            "defaultCacheDuration": "1m",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "args": ["Image"],
            "env": [{"name": "MODE", "value": mode}],
            **more,
        }
        config = write(folder / "conf.d/1.json", {"providers": [provider]})
        kubelet = Kubelet(provider_config=config, provider_bin_dir=str(program.parent))
        self.source = ProviderPlugins(kubelet, {"HOME": "@home", "PATH": "/usr/bin:/bin"})

    def runs(self) -> int:
        return self.log.read_text().count("run") if self.log.exists() else 0


def test_a_plugin(tmp_path: Path) -> None:
    plugins = Plugins(tmp_path)
    login = plugins.source.find(IMAGE)
    assert login is not None
    assert login.credentials == Credentials("me@home", "hush")
    assert login.origin == "the kubelet's plugin ecr"
    assert json.loads(Path(f"{plugins.log}.request").read_text()) == {
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "kind": "CredentialProviderRequest",
        "image": "r.test/a",
    }


def test_a_folder_of_configurations(tmp_path: Path) -> None:
    plugins = Plugins(tmp_path)
    kubelet = Kubelet(
        provider_config=str(tmp_path / "conf.d"), provider_bin_dir=str(tmp_path / "bin")
    )
    assert ProviderPlugins(kubelet, {"PATH": "/usr/bin:/bin"}).find(IMAGE) is not None
    assert plugins.runs() == 1


def test_a_plugin_is_asked_once_for_a_repository(tmp_path: Path) -> None:
    plugins = Plugins(tmp_path)
    ring = Keyring([plugins.source], pytest.fail)
    for name in ("r.test/a:1", "r.test/a:2", "r.test/b:1"):
        assert ring.find(parse(name)) is not None
    assert plugins.runs() == 2


@pytest.mark.parametrize(
    ("image", "more"),
    [
        ("r.other/a", {}),
        ("r.test/a", {"matchImages": ["o.test"]}),
        ("r.test/a", {"tokenAttributes": {"serviceAccountTokenAudience": "x"}}),
    ],
)
def test_plugins_that_are_not_run(tmp_path: Path, image: str, more: dict[str, Any]) -> None:
    plugins = Plugins(tmp_path, **more)
    assert plugins.source.find(parse(image)) is None
    assert plugins.runs() == 0


@pytest.mark.parametrize(
    ("mode", "more", "said"),
    [
        ("fail", {}, '"ecr" failed (3): no role'),
        ("odd", {}, "did not answer as a credential provider"),
        ("slow", {}, "did not end within 1s"),
        ("me", {"name": "nosuch"}, "cannot be run: no such file or directory"),
        ("me", {"name": "../bin/ecr"}, "its name or apiVersion is invalid"),
        ("me", {"apiVersion": "v1"}, "its name or apiVersion is invalid"),
    ],
)
def test_a_plugin_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, more: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(keyring, "PLUGIN_S", 1.0)
    with pytest.raises(ConfigError) as caught:
        Plugins(tmp_path, mode, **more).source.find(IMAGE)
    assert said in caught.value.message
    assert "hush" not in caught.value.message


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    kubelet = Kubelet(provider_config=str(tmp_path / "none"), provider_bin_dir="/b")
    with pytest.raises(ConfigError, match="cannot read"):
        ProviderPlugins(kubelet, {}).find(IMAGE)
