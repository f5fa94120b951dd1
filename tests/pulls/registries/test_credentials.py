"""Credentials in files, of credential helpers, and of the kubelet, and their order."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.node.kubelet import Kubelet
from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries import credentials
from pycrictl.pulls.registries.credentials import (
    Credentials,
    Keyring,
    ask_program,
    credentials_in,
    credentials_of,
    fitting,
)
from pycrictl.pulls.registries.mirrors import CrioAccess
from tests.support.hostfiles import run_program, write

IMAGE = parse("r.test/a:1")
ME = Credentials("me", "se:cret")
AUTH = {"auth": base64.b64encode(b"me:se:cret").decode()}


@pytest.mark.parametrize(
    ("keys", "reference", "expected"),
    [
        (["r.test"], "r.test/a/b:1", "r.test"),
        (["r.test", "r.test/a", "r.test/a/b"], "r.test/a/b:1", "r.test/a/b"),
        (["r.test/a"], "r.test/ab:1", ""),
        (["r.test"], "r.test:5000/a", ""),
        (["r.test:5000"], "r.test:5000/a", "r.test:5000"),
        (["https://r.test/v1/"], "r.test/a", "https://r.test/v1/"),
        (["https://index.docker.io/v1/"], "busybox", "https://index.docker.io/v1/"),
        (["*.r.test"], "a.r.test/b", "*.r.test"),
        (["*.r.test"], "r.test/b", ""),
        (["*.r.test", "a.r.test"], "a.r.test/b", "a.r.test"),
        (
            ["*.dkr.ecr.*.amazonaws.com"],
            "1.dkr.ecr.eu-1.amazonaws.com/b",
            "*.dkr.ecr.*.amazonaws.com",
        ),
        (["*.test"], "r.test:5000/b", ""),
        (["[::1]:5000"], "[::1]:5000/b", "[::1]:5000"),
        ([""], "r.test/b", ""),
    ],
)
def test_the_key_that_fits_best(keys: list[str], reference: str, expected: str) -> None:
    assert fitting(keys, parse(reference)) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (AUTH, ME),
        ({"username": "me", "password": "se:cret"}, ME),
        ({"auth": "%%"}, None),
        ({}, None),
        ({"identitytoken": "t"}, Credentials(identity_token="t")),
        ({"registrytoken": "t"}, Credentials(registry_token="t")),
    ],
)
def test_an_entry_of_a_file(tmp_path: Path, entry: Any, expected: Credentials | None) -> None:
    """It may have what a request to pull has."""
    assert expected is None or credentials_of(expected.auth()) == expected
    path = write(tmp_path / "c.json", {"auths": {"r.test": entry}})
    credentials = credentials_in(path, "c", IMAGE)
    assert credentials == (expected and expected._replace(origin="c"))
    assert "cret" not in repr(credentials)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no such file"), ("{", "expecting property name")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        Keyring([str(path)], pytest.fail).find(IMAGE)


HELPER = """#!/bin/sh
read -r server
[ "$1" = get ] || exit 2
case "$server" in
  r.test) echo '{"ServerURL": "r.test", "Username": "me", "Secret": "se:cret"}' ;;
  token.test) echo '{"Username": "<token>", "Secret": "t"}' ;;
  https://index.docker.io/v1/) echo '{"Username": "hub", "Secret": "h"}' ;;
  none.test) echo 'credentials not found in native keychain'; exit 1 ;;
  *) echo 'the keychain is locked'; exit 1 ;;
esac
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / "bin/docker-credential-mine"
    write(program, HELPER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return "mine"


@pytest.mark.parametrize(
    ("document", "reference", "expected"),
    [
        ({"credHelpers": {"r.test": "mine"}}, "r.test/a", ME),
        ({"credsStore": "mine"}, "token.test/a", Credentials(identity_token="t")),
        ({"credsStore": "mine"}, "busybox", Credentials("hub", "h")),
        ({"credsStore": "mine"}, "none.test/a", None),
        ({"credsStore": "mine", "auths": {"none.test": AUTH}}, "none.test/a", ME),
        ({"credHelpers": {"r.test": "other"}, "credsStore": "mine"}, "token.test/a",
         Credentials(identity_token="t")),
    ],
)  # fmt: skip
def test_credential_helpers(
    tmp_path: Path, helper: str, document: Any, reference: str, expected: Credentials | None
) -> None:
    credentials = credentials_in(write(tmp_path / "c.json", document), "c", parse(reference))
    assert (credentials and credentials._replace(origin="")) == expected
    if credentials and expected != ME:
        assert credentials.origin == f"docker-credential-{helper} (of c)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine", '"docker-credential-mine" failed (1): the keychain is locked'),
        ("nosuch", "cannot be run: no such file"),
    ],
)
def test_a_helper_that_fails(tmp_path: Path, helper: str, name: str, said: str) -> None:
    file = write(tmp_path / "c.json", {"credsStore": name})
    with pytest.raises(ConfigError) as caught:
        credentials_in(file, "c", parse("locked.test/a"))
    assert said in caught.value.message


def test_a_program_that_does_not_answer() -> None:
    with pytest.raises(ConfigError, match="did not answer within"):
        ask_program("the helper", ["sleep", "60"], "r.test", {}, timeout_s=0.1)


# CRI-O


@pytest.mark.parametrize(
    ("flags", "file", "is_used"),
    [
        ({}, "/run/containers/0/auth.json", True),
        ({}, "/root/.docker/config.json", True),
        ({"global-auth-file": "/g.json"}, "/g.json", True),
        ({"global-auth-file": "/g.json"}, "/run/containers/0/auth.json", False),
    ],
)
def test_the_logins_of_crio(
    tmp_path: Path, flags: dict[str, str], file: str, is_used: bool
) -> None:
    write(tmp_path / file.lstrip("/"), {"auths": {"r.test": AUTH}})
    access = CrioAccess(flags, {}, str(tmp_path))
    (own,) = access.endpoints(IMAGE)
    expected = ME._replace(origin=file) if is_used else None
    assert access.credentials_for(own, IMAGE, None) == expected
    given = Credentials("you")
    assert access.credentials_for(own, IMAGE, given) == given


# The order, and the kubelet


def auths(user: str, host: str = "r.test") -> dict[str, Any]:
    return {"auths": {host: {"username": user, "password": "hush"}}}


def user_of(ring: Keyring, name: str = "r.test/a:1") -> str:
    credentials = ring.find(parse(name))
    return "" if credentials is None else credentials.username


def test_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, kubelet = (
        write(tmp_path / name / "config.json", auths(name)) for name in ("1", "2", "kubelet")
    )
    other = write(tmp_path / "other.json", auths("other", "o.test"))
    running = Kubelet(root_dir=str(tmp_path / "kubelet"))
    monkeypatch.setattr(credentials, "find_kubelet", lambda root: running)
    assert user_of(Keyring([first, second], pytest.fail)) == "1"
    assert user_of(Keyring([str(tmp_path / "1"), second], pytest.fail)) == "1"  # a folder
    assert user_of(Keyring([other], pytest.fail)) == ""
    caplog.set_level(logging.DEBUG, "pycrictl.registries")
    assert user_of(Keyring([other], pytest.fail, of_node=True)) == "kubelet"
    assert [record.getMessage() for record in caplog.records] == [
        f"credentials for r.test/a: none in {other}",
        f"credentials for r.test/a: {kubelet}",
    ]
    assert "hush" not in caplog.text


def test_the_kubelet_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "--root-dir=/k --image-credential-provider-config /p --image-credential-provider-bin-dir=/b"
    )
    run_program(tmp_path, 7, "kubelet", *words.split())
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/self").mkdir()
    monkeypatch.setattr(noderoot, "_root", str(tmp_path))
    write(tmp_path / "k/config.json", auths("root"))
    assert user_of(Keyring([], pytest.fail, of_node=True)) == "root"
    # Plugins run on the node itself only.
    assert user_of(Keyring([], pytest.fail, of_node=True), "o.test/a") == ""


PLUGIN = """#!/bin/sh
echo run >>{log}
cat >{log}.request
case "$MODE" in
  fail) echo 'no role' >&2; exit 3 ;;
  odd) echo '[]' ;;
  *) cat <<END
{{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
 "cacheKeyType": "$1", "cacheDuration": "0s",
 "auth": {{"*.test": {{"username": "$MODE", "password": "hush"}}}}}}
END
esac
"""


class Plugins:
    """A kubelet with a plugin for ``*.test``, and the keyring of its node."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "log"
        self.warnings: list[str] = []
        program = folder / "bin/ecr"
        write(program, PLUGIN.format(log=self.log))
        program.chmod(0o755)
        self._config = folder / "conf.d/1.json"
        kubelet = Kubelet(
            root_dir=str(folder),
            provider_config=str(folder / "conf.d"),
            provider_bin_dir=str(program.parent),
        )
        monkeypatch.setattr(credentials, "find_kubelet", lambda root: kubelet)
        self.configure()
        self.keyring = Keyring([], self.warnings.append, of_node=True)

    def configure(self, mode: str = "me", **more: Any) -> None:
        provider = {
            "name": "ecr",
            "matchImages": ["*.test"],
            "defaultCacheDuration": "1m",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "args": ["Image"],
            "env": [{"name": "MODE", "value": mode}],
            **more,
        }
        write(self._config, {"providers": [provider]})

    def runs(self) -> int:
        return self.log.read_text().count("run") if self.log.exists() else 0


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    return Plugins(tmp_path, monkeypatch)


def test_a_plugin_is_asked_once_for_a_repository(plugins: Plugins) -> None:
    credentials = Credentials("me", "hush", origin="the kubelet's plugin ecr")
    assert plugins.keyring.find(IMAGE) == plugins.keyring.find(parse("r.test/a:2")) == credentials
    assert plugins.runs() == 1
    assert json.loads(Path(f"{plugins.log}.request").read_text()) == {
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "kind": "CredentialProviderRequest",
        "image": "r.test/a",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"matchImages": ["o.test"]},
        {"tokenAttributes": {"serviceAccountTokenAudience": "x"}},
    ],
)
def test_plugins_that_are_not_run(plugins: Plugins, more: dict[str, Any]) -> None:
    plugins.configure(**more)
    assert plugins.keyring.find(IMAGE) is None
    assert plugins.runs() == 0


def test_a_plugin_that_knows_nothing(plugins: Plugins) -> None:
    plugins.configure("odd")
    assert plugins.keyring.find(IMAGE) is None


@pytest.mark.parametrize(
    ("mode", "more", "said"),
    [
        ("fail", {}, "the kubelet's plugin ecr failed (3): no role"),
        ("me", {"name": "nosuch"}, "cannot be run: no such file or directory"),
    ],
)
def test_a_plugin_that_fails_is_a_warning(
    plugins: Plugins, mode: str, more: dict[str, Any], said: str
) -> None:
    plugins.configure(mode, **more)
    assert plugins.keyring.find(IMAGE) is None
    (warning,) = plugins.warnings
    assert said in warning
    assert "hush" not in warning
