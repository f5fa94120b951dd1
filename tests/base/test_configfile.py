from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base import configfile
from pycrictl.base.errors import ConfigError

COMMENTED = """\
# head comment
runtime-endpoint: unix:///a.sock # inline

# about debug
debug:   true
# the end
"""


@pytest.mark.parametrize(
    ("before", "settings", "after"),
    [
        ("", {"timeout": 3}, "timeout: 3\n"),
        ("# only a comment", {"debug": True}, "# only a comment\ndebug: true\n"),
        ("timeout: 1", {"debug": True}, "timeout: 1\ndebug: true\n"),
        ("timeout: 1\n", {"timeout": 2, "max-retries": -1}, "timeout: 2\nmax-retries: -1\n"),
        (
            COMMENTED,
            {"timeout": 7, "runtime-endpoint": "unix:///b.sock", "debug": False},
            COMMENTED.replace("a.sock", "b.sock").replace("  true", "false") + "timeout: 7\n",
        ),
        ("timeout: 1\ntimeout: 2\n", {"timeout": 3}, "timeout: 3\ntimeout: 3\n"),
        ("debug:\n", {"debug": True}, "debug: true\n"),
        ("debug: # why\n", {"debug": True}, "debug: true # why\n"),
        ('timeout: "1"\n', {"timeout": 2}, "timeout: 2\n"),
        ("# 😀 ünï\ntimeout: 1\r\n", {"timeout": 2}, "# 😀 ünï\ntimeout: 2\n"),
        (
            "",
            {"runtime-endpoint": "unix:///a=b c#d.sock", "image-endpoint": ""},
            'runtime-endpoint: "unix:///a=b c#d.sock"\nimage-endpoint: ""\n',
        ),
        ("---\ntimeout: 1 # a\n", {"debug": True}, "---\ntimeout: 1 # a\ndebug: true\n"),
        # other forms are rewritten
        ('{"timeout": 1}\n', {"debug": True}, "timeout: 1\ndebug: true\n"),
        ("null\n", {"timeout": 4}, "timeout: 4\n"),
        ("debug: >-\n  true\n", {"debug": False}, "debug: false\n"),
    ],
)
def test_only_what_is_set_changes(
    file: Path, before: str, settings: dict[str, str | int | bool], after: str
) -> None:
    file.write_text(before)
    configfile.change(str(file), {key: str(value).lower() for key, value in settings.items()})
    assert file.read_text() == after


KEYS = {
    "runtime-endpoint": st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=12),
    "timeout": st.integers(-(2**63), 2**63 - 1),
    "max-retries": st.integers(-5, 5),
    "debug": st.booleans(),
    "pull-image-on-create": st.booleans(),
}
FILES = st.fixed_dictionaries({}, optional=KEYS)


@given(FILES, FILES, st.booleans())
def test_any_file_can_be_changed(
    first: dict[str, str | int | bool], second: dict[str, str | int | bool], is_flow: bool
) -> None:
    text = yaml.safe_dump(first, default_flow_style=is_flow, allow_unicode=True)
    after = configfile.changed(text, second)
    assert (yaml.safe_load(after) or {}) == first | second


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "crictl.yaml"


def test_a_new_file_is_private_in_a_new_folder(file: Path) -> None:
    path = file.parent / "new" / "folder" / "c.yaml"
    configfile.change(str(path), {"timeout": "3"})
    assert path.read_text() == "timeout: 3\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"timeout: 1\nfoo: bar\n", 'line 2: unknown key "foo"'),
        (b"debug: true\n\xff\n", "line 2: it is not UTF-8 text"),
        (b"#" * 2**21, "it is larger than"),
    ],
)
def test_a_bad_file_is_named_and_left_alone(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    for act in (configfile.values, lambda path: configfile.change(path, {"timeout": "2"})):
        with pytest.raises(ConfigError, match=f'{file}": {message}'):
            act(str(file))
    assert file.read_bytes() == content


def test_what_cannot_be_written(tmp_path: Path) -> None:
    for path in (str(tmp_path), "/proc/nonexistent/x.yaml", "\0"):
        with pytest.raises(ConfigError) as caught:
            configfile.change(path, {"timeout": "1"})
        assert caught.value.message.isprintable()


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        configfile.change(os.devnull, {"timeout": "1"})
    assert Path(os.devnull).is_char_device()
