from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.base.address import Address
from pycrictl.base.errors import ConfigError, PycrictlError
from pycrictl.cli.argv import by_spelling
from pycrictl.cli.command_table import BY_NAME
from pycrictl.cli.commands.proxy import NO_KEYS
from pycrictl.cli.tree import command_of
from pycrictl.node.kubelet import (
    KUBELET_CONFIG,
    Kubelet,
    find_kubelet_config,
    read_kubelet_config,
)
from pycrictl.proxy.pulls.pull_calls import Policy
from pycrictl.proxy.settings import ProxySettings
from tests.proxy.settings import settings_from

UPSTREAM = "unix:///run/containerd/containerd.sock"
UP = [f"--upstream={UPSTREAM}"]
KEYS: dict[str, tuple[str, str, object]] = {
    "upstream": ('"/a/b.sock"', "upstream", "/a/b.sock"),
    "listen": ('"unix:///c.sock"', "listen", "/c.sock"),
    "max-parallel-image-pulls": ("4", "limit", 4),
    "when-full": ('"retry"', "policy", Policy.RETRY),
    "retry-interval": ('"1m30s"', "retry_interval_s", 90.0),
    "retries": ("7", "retries", 7),
    "drain-timeout": ('"2m"', "drain_timeout_s", 120.0),
    "admin-socket": ('"/d.sock"', "admin_socket", "/d.sock"),
    "stream-address": ('"[::1]:99"', "stream_address", Address("::1", 99)),
    "container-copy-size-limit": ('"10Gi"', "copy_size_limit_bytes", 10 << 30),
    "container-copies-per-pod": ("3", "copies_per_pod", 3),
    "spool-dir": ('"/var/spool"', "spool_dir", "/var/spool"),
    "state-dir": ('"/var/lib/x"', "state_dir", "/var/lib/x"),
    "metrics-listen": ('"0.0.0.0:9100"', "metrics_address", Address("0.0.0.0", 9100)),
    "events": ('"kubelet"', "events", "kubelet"),
}
"""For each key its value in the file, and the field and value of the setting."""


def test_kubelets_file_is_the_one_that_it_was_started_with(tmp_path: Path) -> None:
    for path, limit in ((KUBELET_CONFIG, 2), ("/etc/k.yaml", 5)):
        file = Path(f"{tmp_path}{path}")
        file.parent.mkdir(parents=True)
        file.write_text(f"serializeImagePulls: false\nmaxParallelImagePulls: {limit}\n")
    assert find_kubelet_config(Kubelet(), tmp_path).limit == 2
    assert find_kubelet_config(Kubelet(config="/etc/k.yaml"), tmp_path).limit == 5


def settings(tmp_path: Path, toml: str, *words: str) -> ProxySettings:
    file = tmp_path / "p.toml"
    file.write_text(toml)
    return settings_from(f"--config={file}", *words)


def test_every_option_is_a_key(tmp_path: Path) -> None:
    options = by_spelling(command_of(BY_NAME["proxy"]).params).keys()
    assert KEYS.keys() | {"kubelet-config", "log-level", *NO_KEYS} == options
    toml = "".join(f"{key} = {written}\n" for key, (written, _, _) in KEYS.items())
    read = settings(tmp_path, f'{toml}log-level = "warning"')
    assert {field: getattr(read, field) for _, field, _ in KEYS.values()} == {
        field: value for _, field, value in KEYS.values()
    }
    assert read.limit_origin == str(tmp_path / "p.toml")


@pytest.mark.parametrize(
    ("typed", "toml", "yaml", "limit", "origin"),
    [
        ("3", "max-parallel-image-pulls = 5", "", 3, "flag"),
        ("0", "max-parallel-image-pulls = 5", "", 0, "flag"),
        ("", "max-parallel-image-pulls = 5", "maxParallelImagePulls: 7", 5, "p.toml"),
        ("", "", "maxParallelImagePulls: 7", 7, "k.yaml"),
        ("", "", "serializeImagePulls: true", 1, "k.yaml"),
        ("", "", "serializeImagePulls: false", 0, "k.yaml"),
        ("", "", "serializeImagePulls: false\nmaxParallelImagePulls: 9", 9, "k.yaml"),
        ("", "", "kind: KubeletConfiguration", 0, "default"),
    ],
)
def test_where_the_limit_comes_from(
    tmp_path: Path, typed: str, toml: str, yaml: str, limit: int, origin: str
) -> None:
    kubelet_config = tmp_path / "k.yaml"
    kubelet_config.write_text(yaml or "{}")
    words = [f"--max-parallel-image-pulls={typed}"] if typed else []
    read = settings(tmp_path, toml, *UP, f"--kubelet-config={kubelet_config}", *words)
    assert read.limit == limit
    assert Path(read.limit_origin).name == origin


@pytest.mark.parametrize(
    ("words", "toml", "yaml", "quotas"),
    [
        ([], "", "containerCopySizeLimit: 2Gi\ncontainerCopiesPerPod: 4", (2 << 30, 4)),
        ([], "", "containerCopySizeLimit: 4096", (4096, 0)),
        ([], "container-copies-per-pod = 0", "containerCopiesPerPod: 4", (0, 0)),
        ([], "container-copy-size-limit = 9", "containerCopiesPerPod: 4", (9, 4)),
        (["--container-copies-per-pod=3"], "", "containerCopiesPerPod: 4", (0, 3)),
        ([], "", "kind: KubeletConfiguration", (0, 0)),
    ],
)
def test_where_the_quotas_of_copies_come_from(
    tmp_path: Path, words: list[str], toml: str, yaml: str, quotas: tuple[int, int]
) -> None:
    (tmp_path / "k.yaml").write_text(yaml)
    read = settings(tmp_path, toml, *UP, f"--kubelet-config={tmp_path}/k.yaml", *words)
    assert (read.copy_size_limit_bytes, read.copies_per_pod) == quotas


@pytest.mark.parametrize(
    "line",
    [
        'upstream = "tcp://1.2.3.4:5"',
        'listen = ""',
        "max-parallel-image-pulls = -1",
        "max-parallel-image-pulls = true",
        'when-full = "queue"',
        'retry-interval = "10"',
        'drain-timeout = "-1s"',
        "container-copy-size-limit = -1",
        'container-copy-size-limit = "10m"',
        'metrics-listen = "localhost:1"',
    ],
)
def test_a_bad_value_is_named_with_file_and_key(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, line)
    key = line.partition(" ")[0]
    assert caught.value.message.startswith(f'"{tmp_path / "p.toml"}": {key}: ')
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("toml", "words", "message"),
    [
        ("", ["--retry-interval=10"], "'--retry-interval': "),
        ("speed = 5", [], 'unknown key "speed"'),
        ("reload = true", [], 'unknown key "reload"'),
        ("[table]\nretries = 5", [], 'unknown key "table"'),
        ("retries =", [], "is not valid TOML"),
        ('stream-address = "0.0.0.0:80"', UP, "stands for all addresses"),
        ("", [*UP, f"--listen={UPSTREAM}"], "three different sockets"),
        ("", ["--config=/no/such/file"], "does not exist"),
        ("", ["--config=/"], "cannot read the config file"),
        ("", ["--kubelet-config=/no/such/file"], "no such file or directory"),
    ],
)
def test_other_mistakes(tmp_path: Path, toml: str, words: list[str], message: str) -> None:
    with pytest.raises(PycrictlError) as caught:
        settings(tmp_path, toml, *words)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maxParallelImagePulls: 0", "maxParallelImagePulls: it is not a number"),
        ("serializeImagePulls: 1", "serializeImagePulls: it is not true or false"),
        (
            "serializeImagePulls: true\nmaxParallelImagePulls: 3",
            "maxParallelImagePulls: it is 3, but serializeImagePulls is true",
        ),
        ("containerCopySizeLimit: much", 'containerCopySizeLimit: "much" is not a size'),
        ("containerCopiesPerPod: 4Ki", "containerCopiesPerPod: it is not a number of 0 or more"),
        ("enableDebuggingHandlers: 0", "enableDebuggingHandlers: it is not true or false"),
        ("- a", "is not a mapping"),
        ("a: &x 1\nb: *x", ", line 2: aliases are not supported"),
    ],
)
def test_a_bad_kubelet_configuration(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_kubelet_config(str(file))
    assert str(file) in caught.value.message
    assert message in caught.value.message


def test_debugging_handlers_are_on_unless_they_are_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "k.yaml"
    for text, debugs in (("{}", True), ("true", True), ("false", False)):
        file.write_text(text if text == "{}" else f"enableDebuggingHandlers: {text}")
        assert read_kubelet_config(str(file)).debugs is debugs
