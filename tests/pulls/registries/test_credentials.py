"""Credentials in files, and of credential helpers."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import ConfigError
from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries import credentials
from pycrictl.pulls.registries.credentials import AuthFile, Credentials, Login, fitting
from pycrictl.pulls.registries.registries_conf import CrioAccess
from tests.support.hostfiles import write

ME = Credentials("me", "se:cret")
AUTH = {"auth": base64.b64encode(b"me:se:cret").decode()}


@pytest.mark.parametrize(
    ("keys", "reference", "found"),
    [
        (["r.test"], "r.test/a/b:1", "r.test"),
        (["r.test", "r.test/a", "r.test/a/b"], "r.test/a/b:1", "r.test/a/b"),
        (["r.test/a"], "r.test/ab:1", ""),
        (["r.test"], "r.test:5000/a", ""),
        (["r.test:5000"], "r.test:5000/a", "r.test:5000"),
        (["https://r.test/v1/"], "r.test/a", "https://r.test/v1/"),
        (["http://r.test/"], "r.test/a", "http://r.test/"),
        (["https://index.docker.io/v1/"], "busybox", "https://index.docker.io/v1/"),
        (["docker.io"], "docker.io/library/busybox:1", "docker.io"),
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
        ([], "r.test/b", ""),
    ],
)
def test_the_key_that_fits_best(keys: list[str], reference: str, found: str) -> None:
    assert fitting(keys, parse(reference)) == found


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (AUTH, ME),
        ({"username": "me", "password": "se:cret"}, ME),
        ({"auth": "%%"}, None),
        ({}, None),
        ({"auth": 5}, None),
        ({"identitytoken": "t"}, Credentials(identity_token="t")),
        ({"registrytoken": "t"}, Credentials(registry_token="t")),
    ],
)
def test_an_entry_of_a_file(tmp_path: Path, entry: Any, found: Credentials | None) -> None:
    path = write(tmp_path / "c.json", {"auths": {"r.test": entry}})
    login = AuthFile(path, "c").find(parse("r.test/a"))
    assert login == (None if found is None else Login(found, "c"))
    assert "cret" not in repr(login)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no such file"), ("{", "not a JSON object"), ("[]", "not a JSON")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        AuthFile(str(path), "c", is_given=True).find(parse("r.test/a"))
    assert AuthFile(str(path), "c").find(parse("r.test/a")) is None


HELPER = """#!/bin/sh
read -r server
[ "$1" = get ] || exit 2
case "$server" in
  r.test) echo '{"ServerURL": "r.test", "Username": "me", "Secret": "se:cret"}' ;;
  token.test) echo '{"Username": "<token>", "Secret": "t"}' ;;
  https://index.docker.io/v1/) echo '{"Username": "hub", "Secret": "h"}' ;;
  none.test) echo 'credentials not found in native keychain'; exit 1 ;;
  slow.test) exec sleep 60 ;;
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
    ("document", "reference", "found"),
    [
        ({"credHelpers": {"r.test": "mine"}}, "r.test/a", ME),
        ({"credsStore": "mine"}, "r.test/a", ME),
        ({"credsStore": "mine"}, "token.test/a", Credentials(identity_token="t")),
        ({"credsStore": "mine"}, "busybox", Credentials("hub", "h")),
        ({"credsStore": "mine"}, "none.test/a", None),
        ({"credsStore": "mine", "auths": {"none.test": AUTH}}, "none.test/a", ME),
        ({"credHelpers": {"r.test": "mine"}, "auths": {"o.test": AUTH}}, "o.test/a", ME),
        ({"credHelpers": {"r.test": "other"}, "credsStore": "mine"}, "token.test/a",
         Credentials(identity_token="t")),
    ],
)  # fmt: skip
def test_credential_helpers(
    tmp_path: Path, helper: str, document: Any, reference: str, found: Credentials | None
) -> None:
    login = AuthFile(write(tmp_path / "c.json", document), "c").find(parse(reference))
    assert (login and login.credentials) == found
    if found and found != ME:
        assert login is not None
        assert login.origin == f"docker-credential-{helper} (of c)"


@pytest.mark.parametrize(
    ("name", "server", "said"),
    [
        ("mine", "locked.test", '"docker-credential-mine" failed: the keychain is locked'),
        ("mine", "slow.test", "did not end within 1s"),
        ("nosuch", "r.test", "cannot be run: no such file"),
        ("../x", "r.test", "its name is invalid"),
    ],
)
def test_a_helper_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: str, name: str, server: str, said: str
) -> None:
    monkeypatch.setattr(credentials, "HELPER_S", 1.0)
    file = AuthFile(write(tmp_path / "c.json", {"credsStore": name}), "c")
    with pytest.raises(ConfigError) as caught:
        file.find(parse(f"{server}/a"))
    assert said in caught.value.message


def test_the_kubelets_file_runs_no_helpers(tmp_path: Path, helper: str) -> None:
    document = {"credsStore": helper, "auths": {"r.test": {"username": "k", "password": "p"}}}
    file = AuthFile(write(tmp_path / "c.json", document), "c", runs_helpers=False)
    login = file.find(parse("r.test/a"))
    assert login is not None
    assert login.credentials == Credentials("k", "p")


# CRI-O


@pytest.mark.parametrize(
    ("flags", "environ", "file", "is_found"),
    [
        ({}, {}, "/run/containers/0/auth.json", True),
        ({}, {"XDG_RUNTIME_DIR": "/x"}, "/x/containers/auth.json", True),
        ({}, {}, "/root/.config/containers/auth.json", True),
        ({}, {"HOME": "/h"}, "/h/.docker/config.json", True),
        ({"global-auth-file": "/g.json"}, {}, "/g.json", True),
        ({"global-auth-file": "/g.json"}, {}, "/run/containers/0/auth.json", False),
        ({}, {"CONTAINER_GLOBAL_AUTH_FILE": "/g.json"}, "/g.json", True),
        ({"config-dir": "/conf.d"}, {}, "/of-conf.json", True),
    ],
)
def test_the_logins_of_crio(
    tmp_path: Path, flags: dict[str, str], environ: dict[str, str], file: str, is_found: bool
) -> None:
    write(tmp_path / "conf.d/1.conf", '[crio.image]\nglobal_auth_file = "/of-conf.json"\n')
    write(tmp_path / file.lstrip("/"), {"auths": {"r.test": AUTH}})
    access, reference = CrioAccess(flags, environ, str(tmp_path)), parse("r.test/a:1")
    (own,) = access.endpoints(reference)
    login = access.login_for(own, reference, None)
    assert login == (Login(ME, file) if is_found else None)
    given = Login(Credentials("you"), "")
    assert access.login_for(own, reference, given) == given
