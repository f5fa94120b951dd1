from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import UsageError
from pycrictl.base.limits import FILE_BYTES
from pycrictl.runtime.cri import configurations

POD = "metadata: {name: web, namespace: default}\n"
CONTAINER = "metadata: {name: main}\nimage: {image: busybox}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spec"


def pod(file: Path, text: str) -> cri_pb2.PodSandboxConfig:
    file.write_text(text)
    return configurations.load_pod(str(file), print)


def container(file: Path, text: str) -> cri_pb2.ContainerConfig:
    file.write_text(text)
    return configurations.load_container(str(file))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGNAL_SIGTERM"])
def test_signals_have_their_own_names(file: Path, name: str) -> None:
    config = container(file, CONTAINER + f"stop_signal: {name}\n")
    assert config.stop_signal == cri_pb2.SIGNAL_SIGTERM


def test_environment_is_plain_text(file: Path) -> None:
    config = container(file, CONTAINER + "envs: [{key: A, value: ünï}, {key: B, value: 'aGk='}]\n")
    assert [env.value for env in config.envs] == ["ünï".encode(), b"aGk="]


def test_what_is_filled(file: Path) -> None:
    first, second = pod(file, POD), pod(file, POD)
    assert uuid.UUID(first.metadata.uid) != uuid.UUID(second.metadata.uid)
    assert pod(file, "metadata: {name: a, namespace: b, uid: u}").metadata.uid == "u"
    assert container(file, CONTAINER).image.user_specified_image == "busybox"
    given = "metadata: {name: m}\nimage: {image: 'sha256:1', user_specified_image: b}\n"
    assert container(file, given).image.user_specified_image == "b"


def test_null_is_as_if_the_key_were_absent(file: Path) -> None:
    nulls = (
        "linux: null\nlabels: ~\nport_mappings:\nhostname: null\n"
        "dns_config: {servers: null}\nannotations: {a: null}\n"
    )
    expected = pod(file, POD + "dns_config: {}\n")
    given = pod(file, POD + nulls)
    given.metadata.uid = expected.metadata.uid
    assert given == expected
    context = "{run_as_user: null, privileged: null, namespace_options: {pid: null}}"
    text = f"{CONTAINER}linux: {{security_context: {context}}}"
    assert container(file, text).linux.security_context.HasField("namespace_options")
    with pytest.raises(UsageError, match=r"metadata\.name is missing or empty"):
        pod(file, "metadata: null\n")


@pytest.mark.parametrize("more", ["---\n", "---\nfoo: [", "...\n---\nkind: x\n"])
def test_only_the_first_document_is_used(file: Path, more: str) -> None:
    assert pod(file, POD + "hostname: h\n" + more).hostname == "h"


@pytest.mark.parametrize(
    ("text", "count"), [("linux: {}\n", 1), ("linux: {cgroup_parent: /x}\n", 0), ("", 0)]
)
def test_cgroup_warning(file: Path, text: str, count: int) -> None:
    file.write_text(POD + text)
    warnings: list[str] = []
    configurations.load_pod(str(file), warnings.append)
    assert len(warnings) == count
    assert all("cgroup_parent" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "metadata:\n  nme: x\n",
            ': metadata: Message type "runtime.v1.PodSandboxMetadata" has no',
        ),
        ("metadata: {name: web}\n", ": metadata.namespace is missing or empty"),
        (
            "metadata: {name: 5}\n",
            ": metadata.name: expected string or bytes-like object, got 'int'",
        ),
        (
            "port_mappings: [{host_port: 2147483648}]",
            ": port_mappings.host_port: Value out of range",
        ),
        ("port_mappings: [{protocol: tcp}]", ": port_mappings.protocol: Invalid enum value tcp"),
        ("linux: 5", ": linux: "),
        ('{"metadata": {\n  "name": \n\n', ": line 2: it is not JSON"),
        ("- 1", ": it must be a mapping of keys to values"),
        ("", ": it must be a mapping of keys to values"),
        ('{"hostname": "\\ud800"}', "it is not JSON: found invalid Unicode character"),
        ("'\\e[2J': 5", "has no field named"),
    ],
)
def test_what_is_wrong_is_named(file: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        pod(file, text)
    assert caught.value.message.startswith(f'pod config "{file}"')
    assert message in caught.value.message
    assert caught.value.message.isprintable()


def test_an_unknown_key_is_answered_with_those_that_exist(file: Path) -> None:
    with pytest.raises(UsageError) as caught:
        pod(file, "metadata: {nme: x}")
    assert caught.value.hint == "its keys are name, uid, namespace, attempt"


def test_container_needs_an_image(file: Path) -> None:
    with pytest.raises(UsageError, match=r"image\.image is missing or empty"):
        container(file, "metadata: {name: x}\nimage: {}\n")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"#" * (FILE_BYTES + 1))
    binary = tmp_path / "binary"
    binary.write_bytes(b"a: b\n\xff")
    for path, reason in [
        (str(tmp_path / "none"), "no such file or directory"),
        (str(tmp_path), "is a directory"),
        (str(large), "larger than 1024 KiB"),
        (str(binary), "line 2: it is not UTF-8 text"),
        ("\0", "null byte"),
    ]:
        with pytest.raises(UsageError, match=reason):
            configurations.load_pod(path, print)
