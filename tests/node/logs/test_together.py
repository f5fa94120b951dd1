"""Several logs merged into one: read once, or followed while containers start and end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.node.logs.log_reader import Selection
from pycrictl.node.logs.together import MAX_PART_BYTES, Together


def line(second: int, text: str, stream: str = "stdout", tag: str = "F") -> str:
    return f"2024-01-02T03:04:{second:02}.5Z {stream} {tag} {text}\n"


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(lines))


def read(together: Together) -> str:
    chunks = together.follow(lambda: pytest.fail("waits"))
    return b"".join(data for _, data in chunks).decode()


class Told:
    """Records the warnings about missing logs and bad lines."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def together(self, wanted: Selection | None = None) -> Together:
        return Together(wanted or Selection(), warn=self.warnings.append)


def test_logs_are_read_by_their_times(tmp_path: Path) -> None:
    told = Told()
    together = told.together()
    append(tmp_path / "a", line(1, "one"), line(4, "four", "stderr"), line(5, "five"))
    append(tmp_path / "b", line(2, "two"), line(3, "th", tag="P"), line(6, "ree"))
    for name in ("a", "b", "nosuch"):
        together.add(str(tmp_path / name), prefix=f"[{name}] ", is_alive=lambda: False)
    chunks = together.follow(lambda: pytest.fail("waits"))
    assert [(stream, data) for stream, data in chunks] == [
        ("stdout", b"[a] one\n[b] two\n[b] three\n"),
        ("stderr", b"[a] four\n"),
        ("stdout", b"[a] five\n"),
    ]
    (warning,) = told.warnings
    assert warning.startswith("there is no log ")


def test_the_tail_counts_for_each_and_the_limit_for_all(tmp_path: Path) -> None:
    together = Told().together(Selection(tail_lines=2, limit_bytes=20))
    for name in ("a", "b"):
        append(tmp_path / name, line(1, "none"), line(1, "one"), line(2, "second"))
        together.add(str(tmp_path / name), prefix="[x] ", is_alive=lambda: False)
    assert read(together) == "[x] one\n[x] one\n[x] "


def test_more_chunks_than_a_turn_has(tmp_path: Path) -> None:
    together = Told().together()
    append(tmp_path / "a", *(line(1, "x" * 100, ("stdout", "stderr")[n % 2]) for n in range(500)))
    append(tmp_path / "a", line(2, "end")[:-1])
    together.add(str(tmp_path / "a"), prefix="", is_alive=lambda: False)
    text = read(together)
    assert text.count("\n") == 501
    assert text.endswith("end\n")


def test_what_is_written_meanwhile_is_followed(tmp_path: Path) -> None:
    """The containers end once the last step has run."""
    a, b = tmp_path / "a", tmp_path / "b"
    together = Told().together(Selection(tail_lines=1))
    append(a, line(1, "old"), line(2, "a2"))
    append(b, line(3, "b3"))

    def write_late() -> None:
        append(b, line(5, "b5"))
        append(a, line(4, "a4"))

    steps: list[Callable[[], None]] = [
        write_late,
        lambda: None,
        lambda: append(a, line(8, "a8")[:-1]),
    ]
    for path in (a, b):
        together.add(str(path), prefix=f"{path.name}:", is_alive=lambda: bool(steps))
    text = b"".join(data for _, data in together.follow(lambda: steps.pop(0)()))
    assert text == b"a:a2\nb:b3\na:a4\nb:b5\na:a8\n"


def test_a_flood_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    together = Told().together()
    a.touch()
    append(b, line(1, "first"))
    together.add(str(a), prefix="", is_alive=lambda: True)
    together.add(str(b), prefix="", is_alive=lambda: True)
    count = 0
    for _, data in together.follow(lambda: append(a, line(2, "x" * 1000))):
        count += 1
        append(a, *(line(3, "x" * 1000) for _ in range(100)))
        if count == 80:
            append(b, line(4, "heard"))
        if b"heard" in data:
            break
        assert count < 5000, "never heard"


# Lines


def test_lines_have_their_prefix_and_in_part_their_times(tmp_path: Path) -> None:
    """A time that goes backwards does not reorder lines; a line without a time keeps its place."""
    append(tmp_path / "a", line(3, "a3"), line(1, "a1"), "nonsense\n", line(9, "x")[:22])
    append(tmp_path / "b", line(2, "b2"), "2024-99-99T00:00:00Z stdout F b?\n", line(4, "b4"))
    for has_timestamps, start in ((False, "[b] b2"), (True, "[b] 2024-01-02T03:04:02.5")):
        together = Told().together(Selection(has_timestamps=has_timestamps))
        for name in ("a", "b"):
            together.add(str(tmp_path / name), prefix=f"[{name}] ", is_alive=lambda: False)
        text = read(together)
        words = [line.rsplit(" ", 1)[-1] for line in text.splitlines()]
        assert words == ["b2", "b?", "a3", "a1", "nonsense", "2024-01-02T03:04:09.5Z", "b4"]
        assert text.startswith(start)


def test_an_endless_line_is_passed_on_in_parts(tmp_path: Path) -> None:
    together = Told().together()
    append(tmp_path / "a", *(line(1, "x" * 4096, tag="P") for _ in range(300)), line(1, "y"))
    together.add(str(tmp_path / "a"), prefix="", is_alive=lambda: False)
    first, second = read(together).splitlines()
    assert MAX_PART_BYTES < len(first) <= MAX_PART_BYTES + (128 << 10)
    assert len(first) + len(second) == 300 * 4096 + 1
