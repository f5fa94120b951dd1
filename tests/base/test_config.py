from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.config import Config, Flags, load, parse_file, socket_path
from pycrictl.base.errors import ConfigError, UsageError

FULL = """\
runtime-endpoint: unix:///file.sock
image-endpoint: unix:///file-images.sock
timeout: 7
debug: true
pull-image-on-create: true
disable-pull-on-run: true
max-retries: -1
"""


def read(
    tmp_path: Path,
    text: str | bytes | None = None,
    *,
    flags: Flags | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Load with `text` as the file at the default path."""
    path = tmp_path / "etc.yaml"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(flags or Flags(), environ or {}, default_path=str(path))


ENVIRON = {"CONTAINER_RUNTIME_ENDPOINT": "/env", "IMAGE_SERVICE_ENDPOINT": "/env-images"}
ALL_FLAGS = Flags(
    runtime_endpoint="/flag",
    image_endpoint="/flag-images",
    timeout_s=0.5,
    debug=False,
    max_retries=0,
)
ZEROS = 'runtime-endpoint: ""\nimage-endpoint: ""\ntimeout: 0\nmax-retries: 0\n'
IN_FILE = "unix:///file.sock"


@pytest.mark.parametrize(
    ("text", "flags", "environ", "expected"),
    [
        (FULL, {}, {}, (IN_FILE, "unix:///file-images.sock", 7.0, True, -1)),
        (FULL, {}, ENVIRON, ("/env", "/env-images", 7.0, True, -1)),
        (FULL, ALL_FLAGS._asdict(), ENVIRON, ("/flag", "/flag-images", 0.5, False, 0)),
        # A variable counts although it is empty.
        (
            FULL,
            {},
            {"CONTAINER_RUNTIME_ENDPOINT": ""},
            ("", "unix:///file-images.sock", 7.0, True, -1),
        ),
        # With an empty image endpoint, images use the runtime's.
        (FULL, {"image_endpoint": ""}, {}, (IN_FILE, IN_FILE, 7.0, True, -1)),
        (FULL, {}, {"IMAGE_SERVICE_ENDPOINT": ""}, (IN_FILE, IN_FILE, 7.0, True, -1)),
        # An empty endpoint in the file is none.
        (ZEROS, {}, {}, (None, None, 2.0, False, 0)),
        # A timeout that is not positive means the default.
        ("timeout: 20\n", {"timeout_s": -5.0}, {}, (None, None, 2.0, False, 3)),
        ("timeout: 20\n", {"timeout_s": 0.0}, {}, (None, None, 2.0, False, 3)),
        ("timeout: -1\n", {}, {}, (None, None, 2.0, False, 3)),
    ],
)
def test_precedence(
    tmp_path: Path,
    text: str,
    flags: dict[str, Any],
    environ: dict[str, str],
    expected: tuple[object, ...],
) -> None:
    config = read(tmp_path, text, flags=Flags(**flags), environ=environ)
    assert config[:5] == expected
    assert config.pull_image_on_create == config.disable_pull_on_run == (text == FULL)


def test_defaults(tmp_path: Path) -> None:
    assert read(tmp_path) == Config(None, None, 2.0, False, 3, False, False, None, ())


class TestWhichFile:
    def test_flag_then_variable_then_default(self, tmp_path: Path) -> None:
        for timeout, name in enumerate(("flag", "variable", "default"), start=1):
            (tmp_path / name).write_text(f"timeout: {timeout}\n")
        flag, variable, default = (str(tmp_path / n) for n in ("flag", "variable", "default"))
        environ = {"CRI_CONFIG_FILE": variable}
        by_flag = load(Flags(config=flag), environ, default_path=default)
        by_variable = load(Flags(), environ, default_path=default)
        by_default = load(Flags(), {}, default_path=default)
        assert [s.timeout_s for s in (by_flag, by_variable, by_default)] == [1, 2, 3]
        assert [s.path for s in (by_flag, by_variable, by_default)] == [flag, variable, default]

    @pytest.mark.parametrize("name", ["missing.yaml", "plain/below.yaml"])
    def test_a_named_file_must_exist(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "plain").touch()
        path = str(tmp_path / name)
        for flags, environ in (Flags(config=path), {}), (Flags(), {"CRI_CONFIG_FILE": path}):
            with pytest.raises(ConfigError) as caught:
                load(flags, environ, default_path=str(tmp_path / "none"))
            assert caught.value.message == f'config file "{path}" does not exist'

    @pytest.mark.parametrize(
        ("flags", "origin"), [(Flags(config=""), "--config"), (Flags(), "CRI_CONFIG_FILE")]
    )
    def test_an_empty_name_is_an_error(self, flags: Flags, origin: str) -> None:
        with pytest.raises(ConfigError, match=f"^{origin} is empty$"):
            load(flags, {"CRI_CONFIG_FILE": ""})

    def test_the_file_beside_the_executable(self, tmp_path: Path) -> None:
        beside = tmp_path / "crictl.yaml"
        beside.write_text("timeout: 9\n")
        executable = str(tmp_path / "pycrictl")
        missing = str(tmp_path / "missing.yaml")
        default = load(Flags(), {}, default_path=missing, executable=executable)
        assert (default.timeout_s, default.path) == (9, str(beside))
        assert default.warnings == ()
        named = load(Flags(config=missing), {}, executable=executable)
        assert (named.timeout_s, named.path) == (9, str(beside))
        assert named.warnings == (
            f'config file "{missing}" does not exist, using config file "{beside}"',
        )

    def test_an_invalid_default_file_is_a_warning(self, tmp_path: Path) -> None:
        settings = read(tmp_path, "timeout: 9\nfoo: 1\n")
        assert settings.timeout_s == 2.0
        assert settings.path is None
        expected = f'ignoring the config file "{tmp_path}/etc.yaml": unknown key "foo"'
        assert settings.warnings == (expected,)

    def test_a_named_file_may_be_a_pipe(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=("timeout: 6\n",))
        writer.start()
        assert load(Flags(config=str(pipe)), {}).timeout_s == 6
        writer.join()

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf'^config file "{tmp_path}": is a directory$'):
            load(Flags(config=str(tmp_path)), {})
        assert len(load(Flags(), {}, default_path=str(tmp_path)).warnings) == 1

    def test_an_endless_device(self) -> None:
        with pytest.raises(ConfigError, match=r'^config file "/dev/zero": it is larger than'):
            load(Flags(config="/dev/zero"), {})


class TestContent:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            *((text, {}) for text in ("", "\n\n", "# a comment\n", "---\n", "--- ~\n", "{}\n")),
            ("timeout: 5 # five\r\ndebug: false\r\n", {"timeout": 5, "debug": False}),
            ("timeout: '5'\ndebug: \"T\"\n", {"timeout": 5, "debug": True}),
            ('{"timeout": 5, "debug": true}', {"timeout": 5, "debug": True}),
            ('{\n\t"runtime-endpoint": "/a b"\n}\n', {"runtime-endpoint": "/a b"}),
            ("\ufefftimeout: +5\n", {"timeout": 5}),
            ("timeout: 010\n", {"timeout": 10}),
            ("timeout: 9\n---\nfoo: 1\n", {"timeout": 9}),
            ("timeout: 1\ndebug: t\ntimeout: 2\n", {"timeout": 2, "debug": True}),
            ("timeout:\ndebug: ~\nmax-retries: null\n", {}),
            ('image-endpoint: "null"\n', {"image-endpoint": "null"}),
            ("runtime-endpoint: 8\n", {"runtime-endpoint": "8"}),
        ],
    )
    def test_ways_to_write(self, text: str, expected: dict[str, object]) -> None:
        assert parse_file(text) == expected

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("timeout: 1\nfoo: bar\n", 'unknown key "foo"'),
            ("timeout: 2s\n", 'timeout: "2s" is not a whole number'),
            ("timeout: 99999999999999999999\n", 'timeout: "99999999999999999999" is not'),
            ("timeout: " + "9" * 1_000_000, 'timeout: "999'),
            ("max-retries: true\n", 'max-retries: "true" is not a whole number'),
            ("debug: yes\n", 'debug: "yes" is not a boolean (true or false)'),
            ("pull-image-on-create: 2\n", 'pull-image-on-create: "2" is not a boolean'),
            ("a: b: c\n", "line 1: it is not YAML: "),
            ("timeout: [1]\n", 'the value of "timeout" is a list or a mapping'),
            ("- timeout: 1\n", "it does not hold settings (key: value)"),
            ('"\\e[2J": 1\n', r'unknown key "\x1b[2J"'),
            (b"timeout: 1\ndebug: \xff\n", "line 2: it is not UTF-8 text"),
        ],
    )
    def test_refused(self, tmp_path: Path, text: str | bytes, message: str) -> None:
        path = tmp_path / "c.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(ConfigError) as caught:
            load(Flags(config=str(path)), {})
        assert caught.value.message.startswith(f'config file "{path}": {message}')
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 300


class TestSocketPath:
    @pytest.mark.parametrize(
        ("endpoint", "path"),
        [
            ("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
            ("unix:/run/x.sock", "/run/x.sock"),
            ("UNIX:///run/x.sock", "/run/x.sock"),
            ("/run/x.sock", "/run/x.sock"),
            ("x.sock", "x.sock"),
            ("./a:b", "./a:b"),
            ("unix:///a b/%41?x#y", "/a b/%41?x#y"),
        ],
    )
    def test_accepted(self, endpoint: str, path: str) -> None:
        assert socket_path(endpoint, "runtime-endpoint") == path

    @pytest.mark.parametrize(
        ("endpoint", "message"),
        [
            ("tcp://127.0.0.1:2375", 'endpoint "tcp://127.0.0.1:2375" is not supported: "tcp"'),
            ("http://127.0.0.1:1", '"http" is not unix'),
            ("npipe:////./pipe/x", '"npipe" is not unix'),
            ("localhost:1234", '"localhost" is not unix'),
            ("unix://run/x.sock", 'the endpoint "unix://run/x.sock" has no absolute path'),
            ("unix://", 'the endpoint "unix://" has no absolute path'),
            ("/a\x00b", r'the endpoint "/a\x00b" holds a NUL character'),
            ("tcp://\x1b[2J", r'"tcp://\x1b[2J" is not supported'),
        ],
    )
    def test_refused(self, endpoint: str, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            socket_path(endpoint, "runtime-endpoint")
        assert message in caught.value.message
