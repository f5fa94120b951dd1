from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from pycrictl import config
from pycrictl.config import Config, Flags, load, parse_file, socket_path
from pycrictl.errors import ConfigError, UsageError

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


class TestPrecedence:
    def test_defaults(self, tmp_path: Path) -> None:
        assert read(tmp_path) == Config(
            runtime_endpoint=None,
            image_endpoint=None,
            timeout_s=2.0,
            debug=False,
            max_retries=3,
            pull_image_on_create=False,
            disable_pull_on_run=False,
            path=None,
            warnings=(),
        )

    def test_environment_beats_the_file(self, tmp_path: Path) -> None:
        environ = {"CONTAINER_RUNTIME_ENDPOINT": "/env", "IMAGE_SERVICE_ENDPOINT": "/env-images"}
        settings = read(tmp_path, FULL, environ=environ)
        assert settings.runtime_endpoint == "/env"
        assert settings.image_endpoint == "/env-images"

    def test_flags_beat_everything(self, tmp_path: Path) -> None:
        environ = {"CONTAINER_RUNTIME_ENDPOINT": "/env", "IMAGE_SERVICE_ENDPOINT": "/env-images"}
        flags = Flags(
            runtime_endpoint="/flag",
            image_endpoint="/flag-images",
            timeout_s=0.5,
            debug=False,
            max_retries=0,
        )
        settings = read(tmp_path, FULL, flags=flags, environ=environ)
        assert settings.runtime_endpoint == "/flag"
        assert settings.image_endpoint == "/flag-images"
        assert (settings.timeout_s, settings.debug, settings.max_retries) == (0.5, False, 0)

    def test_a_variable_counts_although_it_is_empty(self, tmp_path: Path) -> None:
        settings = read(tmp_path, FULL, environ={"CONTAINER_RUNTIME_ENDPOINT": ""})
        assert settings.runtime_endpoint == ""

    def test_images_follow_the_runtime_for_an_empty_endpoint(self, tmp_path: Path) -> None:
        by_flag = read(tmp_path, FULL, flags=Flags(image_endpoint=""))
        by_variable = read(tmp_path, FULL, environ={"IMAGE_SERVICE_ENDPOINT": ""})
        for settings in (by_flag, by_variable):
            assert settings.image_endpoint == settings.runtime_endpoint == "unix:///file.sock"

    def test_an_empty_endpoint_in_the_file_is_none(self, tmp_path: Path) -> None:
        text = 'runtime-endpoint: ""\nimage-endpoint: ""\ntimeout: 0\nmax-retries: 0\n'
        settings = read(tmp_path, text)
        assert settings.runtime_endpoint == settings.image_endpoint is None
        assert settings.max_retries == 0

    @pytest.mark.parametrize(("flag", "in_file"), [(-5.0, 20), (0.0, 20), (None, 0), (None, -1)])
    def test_a_timeout_that_is_not_positive_means_the_default(
        self, tmp_path: Path, flag: float | None, in_file: int
    ) -> None:
        settings = read(tmp_path, f"timeout: {in_file}\n", flags=Flags(timeout_s=flag))
        assert settings.timeout_s == 2.0


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

    @pytest.mark.parametrize("name", ["missing.yaml", "no/such/dir.yaml", "plain/below.yaml"])
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
        expected = f'ignoring the config file "{tmp_path}/etc.yaml": line 2: unknown key "foo"'
        assert settings.warnings == (expected,)

    def test_a_named_file_may_be_a_pipe(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=("timeout: 6\n",))
        writer.start()
        assert load(Flags(config=str(pipe)), {}).timeout_s == 6
        writer.join()

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf'^config file "{tmp_path}": Is a directory$'):
            load(Flags(config=str(tmp_path)), {})
        assert len(load(Flags(), {}, default_path=str(tmp_path)).warnings) == 1

    def test_an_endless_device(self) -> None:
        with pytest.raises(ConfigError, match=r'^config file "/dev/zero": it is larger than'):
            load(Flags(config="/dev/zero"), {})


def refusal(text: str | bytes, tmp_path: Path) -> tuple[str, str | None]:
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load(Flags(config=str(path)), {})
    prefix = f'config file "{path}": '
    assert caught.value.message.startswith(prefix)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300
    return caught.value.message.removeprefix(prefix), caught.value.hint


class TestContent:
    @pytest.mark.parametrize(
        "text",
        ["", "\n\n", "# only a comment\n", "---\n", "--- ~\n", "null\n", "{}\n", "\ufeff"],
    )
    def test_nothing_is_valid(self, text: str) -> None:
        assert parse_file(text) == {}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("timeout: 5", {"timeout": 5}),
            ("timeout: 5 # five\r\ndebug: false\r\n", {"timeout": 5, "debug": False}),
            ("timeout: '5'\ndebug: \"T\"\n", {"timeout": 5, "debug": True}),
            ('{"timeout": 5, "debug": true}', {"timeout": 5, "debug": True}),
            ('{\n\t"runtime-endpoint": "/a b"\n}\n', {"runtime-endpoint": "/a b"}),
            ("\ufefftimeout: +5\n", {"timeout": 5}),
            ("timeout: 010\n", {"timeout": 10}),
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
            ("timeout: 1\nfoo: bar\n", 'line 2: unknown key "foo"'),
            ("runtime_endpoint: /a\n", 'line 1: unknown key "runtime_endpoint"'),
            ("timeout: 2s\n", 'line 1: timeout: "2s" is not a whole number'),
            ("\n\ntimeout: 2.5 # x\n", 'line 3: timeout: "2.5" is not a whole number'),
            ("timeout: 99999999999999999999\n", 'line 1: timeout: "99999999999999999999" is not'),
            ("timeout: " + "9" * 1_000_000, 'line 1: timeout: "999'),
            ("max-retries: true\n", 'line 1: max-retries: "true" is not a whole number'),
            ("debug: yes\n", 'line 1: debug: "yes" is not a boolean (true or false)'),
            ("pull-image-on-create: 2\n", 'line 1: pull-image-on-create: "2" is not a boolean'),
            ("a: b: c\n", "line 1: it is not YAML: "),
            ("timeout: [1]\n", 'line 1: the value of "timeout" is a list or a mapping'),
            ("- timeout: 1\n", "line 1: it does not hold settings (key: value)"),
            ('"\\e[2J": 1\n', r'line 1: unknown key "\x1b[2J"'),
            (b"timeout: 1\ndebug: \xff\n", "line 2: it is not UTF-8 text"),
            ("#" * (config.FILE_LIMIT_BYTES + 1), "it is larger than 1024 KiB"),
        ],
    )
    def test_refused(self, tmp_path: Path, text: str | bytes, message: str) -> None:
        assert refusal(text, tmp_path)[0].startswith(message)


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

    def test_empty_is_not_set(self) -> None:
        for option in ("runtime-endpoint", "image-endpoint"):
            with pytest.raises(UsageError, match=f"^--{option} is not set$"):
                socket_path("", option)
