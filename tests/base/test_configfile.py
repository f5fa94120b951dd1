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

ZEROS = {
    "runtime-endpoint": '""', "image-endpoint": '""', "timeout": "0", "debug": "false",
    "pull-image-on-create": "false", "disable-pull-on-run": "false",
}  # fmt: skip


def zeros(*, without: str) -> str:
    return "".join(f"{key}: {zero}\n" for key, zero in ZEROS.items() if key not in without.split())


@pytest.mark.parametrize(
    ("before", "settings", "after"),
    [
        ("# only a comment", {"timeout": 0}, f"# only a comment\n{zeros(without='')}"),
        ("", {"max-retries": -1}, f"{zeros(without='')}max-retries: -1\n"),
        (
            "# head\nruntime-endpoint: unix:///a.sock # inline\n\n# about\ndebug:   true\n# end\n",
            {"timeout": 7, "runtime-endpoint": "unix:///b.sock", "debug": False},
            "# head\nruntime-endpoint: unix:///b.sock # inline\n# about\ndebug: false\n# end\n"
            'image-endpoint: ""\ntimeout: 7\n'
            "pull-image-on-create: false\ndisable-pull-on-run: false\n",
        ),
        (
            "timeout: 1\ntimeout: 2\n",
            {"timeout": 3},
            f"timeout: 3\ntimeout: 3\n{zeros(without='timeout')}",
        ),
        ("debug: # why\n", {"debug": True}, f"debug: true # why\n{zeros(without='debug')}"),
        ('timeout: "1"\n', {"timeout": 2}, f"timeout: 2\n{zeros(without='timeout')}"),
        (
            "# 😀 ünï\ntimeout: 1\r\n",
            {"timeout": 2},
            f"# 😀 ünï\ntimeout: 2\n{zeros(without='timeout')}",
        ),
        (
            "",
            {"runtime-endpoint": "unix:///a=b c#d.sock"},
            f'runtime-endpoint: "unix:///a=b c#d.sock"\n{zeros(without="runtime-endpoint")}',
        ),
        # other forms are rewritten
        ('{"timeout": 0}\n', {"debug": False}, zeros(without="")),
        ("debug: >-\n  true\n", {"debug": False}, zeros(without="")),
    ],
)
def test_only_what_is_set_changes(
    before: str, settings: dict[str, str | int | bool], after: str
) -> None:
    assert configfile.changed(before, settings) == after


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
    zeros = yaml.safe_load("".join(f"{key}: {zero}\n" for key, zero in ZEROS.items()))
    assert yaml.safe_load(after) == zeros | first | second


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "crictl.yaml"


def test_a_new_file_is_private_in_a_new_folder(file: Path) -> None:
    path = file.parent / "new" / "folder" / "c.yaml"
    configfile.change(str(path), {"timeout": "3"})
    assert "timeout: 3\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"timeout: 1\nfoo: bar\n", 'unknown key "foo"'),
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
