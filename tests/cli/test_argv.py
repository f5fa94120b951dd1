from __future__ import annotations

import pytest

from pycrictl.cli.argv import OptionSpec, parse
from pycrictl.errors import UsageError

SPELLINGS = {
    "all a": OptionSpec("--all", is_switch=True),
    "quiet q": OptionSpec("--quiet", is_switch=True),
    "last n": OptionSpec("--last"),
    "pull-timeout pt": OptionSpec("--pull-timeout"),
    "label": OptionSpec("--label", is_repeatable=True),
}
OPTIONS = {name: option for names, option in SPELLINGS.items() for name in names.split()}


@pytest.mark.parametrize(
    ("typed", "options", "positionals", "negated"),
    [
        *((one, "--last=3", "", "") for one in ("--last 3", "-last 3", "--last=3", "-n 3", "-n=3")),
        ("-aqn 1 x", "--last=1 --all --quiet", "x", ""),
        ("-pt 5s", "--pull-timeout=5s", "", ""),  # a name wins over a bundle
        *((f"--all={one}", "--all", "", "") for one in "1 t T true TRUE True".split()),
        *((f"-a --all={one}", "", "", "--all") for one in "0 f F false FALSE False".split()),
        ("--all false", "--all", "false", ""),
        ("-n 1 --label a=b -last=2 --label=c=d", "--label=a=b --label=c=d --last=2", "", ""),
        ("--last -1 --label --all", "--label=--all --last=-1", "", ""),
        ("x -q", "--quiet", "x", ""),
        ("-q -- -a -", "--quiet", "-a -", ""),
        ("-", "", "-", ""),
    ],
)
def test_what_lines_mean(typed: str, options: str, positionals: str, negated: str) -> None:
    line = parse(typed.split(), OPTIONS, interspersed=True)
    assert line.options == options.split()
    assert line.positionals == positionals.split()
    assert line.negated == set(negated.split())


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        *((one, f'unknown option "{one}"', None) for one in ("-qx", "-aqz", "--aq")),
        ("--all=maybe", 'option "--all": "maybe" is not a boolean (true or false)', None),
        ("-n", 'option "-n" needs a value', None),
        ("--quite", 'unknown option "--quite"', "did you mean --quiet?"),
    ],
)
def test_what_is_refused(typed: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse([typed], OPTIONS, interspersed=True)
    assert caught.value.message == message
    assert hint is None or caught.value.hint == hint
