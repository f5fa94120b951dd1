"""Commands over SSH: `ps` on a host over a kept connection, and on twenty hosts.

Real hosts have processors of their own, which twenty on this machine have not. There, ssh and sshd
are real, and the program is a script: it sleeps for as long as the real `ps` took on one of them at
the start of this run, and then writes what that wrote, and ends with its status.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.harness import (
    Benchmark,
    CannotRunError,
    Goal,
    Measured,
    SkippedError,
    interleave,
    milliseconds,
)
from benchmarks.lists import listing
from benchmarks.programs import pycrictl
from pycrictl import __version__
from tests.hosts.sshd import SSHD, Host, Hosts, hosts

HOSTS = 20
CONTAINERS = 5
ROUNDS = 15
RECORDINGS = 5

_KEY = b"records="  # in front of the client's secret word, in what a host is told

_SCRIPT = f"""\
#!/bin/sh
[ "$1" != --version ] || exec echo pycrictl version {__version__}
kind=alone; case $2 in *{_KEY.hex()}*) kind=together ;; esac
cd "$(dirname "$0")/$kind"
"""
_RECORD = """\
began=$(date +%s%N)
{program} "$@" >out 2>err; status=$?
echo $(($(date +%s%N) - began)) >>times
echo "$2" >told; echo $status >status
cat out; cat err >&2; exit $status
"""
_REPLAY = """\
read seconds <seconds; read status <status
sleep "$seconds"
if [ $kind = together ]; then
  # The client's secret word takes the place of the one that was recorded; it is hex in hex.
  word=${2#*KEY}
  word=$(expr substr "$word" 1 128 | sed 's/../& /g; s/3\\([0-9]\\) /\\1/g;
    s/61 /a/g; s/62 /b/g; s/63 /c/g; s/64 /d/g; s/65 /e/g; s/66 /f/g')
  sed "s/WORD/$word/g" out
else
  cat out
fi
cat err >&2
exit "$status"
""".replace("KEY", _KEY.hex())


@contextmanager
def _hosts(count: int) -> Iterator[tuple[Hosts, str]]:
    """Yield so many hosts, and the runtime behind all of them."""
    if not Path(SSHD).exists():
        raise SkippedError("openssh-server is not installed")
    with hosts() as made, listing(CONTAINERS) as server:
        for number in range(1, count + 1):
            name = f"m{number:02}"
            path = f"{made.folder}/{name}-bin:/usr/bin:/bin"
            made.add(name, variables={"PATH": path}).serve(server.endpoint.removeprefix("unix://"))
        yield made, server.endpoint


def _wall_s(made: Hosts, words: Sequence[str]) -> float:
    began_s = time.perf_counter()
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=made.environ
    )
    if done.returncode:
        raise CannotRunError(done.stderr.decode(errors="replace"))
    return time.perf_counter() - began_s


def _install(made: Hosts, host: Host, body: str) -> Path:
    folder = made.folder / f"{host.name}-bin"
    for kind in ("alone", "together"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / "pycrictl").write_text(_SCRIPT + body)
    (folder / "pycrictl").chmod(0o755)
    return folder


def _record(made: Hosts) -> None:
    """Run the real program on two hosts, alone and together; let all hosts replay that."""
    first, second, *_ = made.hosts.values()
    folder = _install(made, first, _RECORD.format(program=made.program))
    _install(made, second, _RECORD.format(program=made.program))
    for _ in range(RECORDINGS):
        _wall_s(made, pycrictl("-H", first.name, "ps"))
        _wall_s(made, pycrictl("-H", f"{first.name},{second.name}", "ps"))
    times_ns = [int(line) for line in (folder / "alone/times").read_text().split()]
    told = bytes.fromhex((folder / "together/told").read_text())
    word = told.partition(_KEY)[2][:64]
    for host in made.hosts.values():
        replay = _install(made, host, _REPLAY)
        for kind in ("alone", "together"):
            output = (folder / kind / "out").read_bytes().replace(word, b"WORD")
            (replay / kind / "out").write_bytes(output)
            for name in ("err", "status"):
                (replay / kind / name).write_bytes((folder / kind / name).read_bytes())
            (replay / kind / "seconds").write_text(f"{median(times_ns) / 1e9:.3f}\n")


def _twenty() -> Measured:
    with _hosts(HOSTS) as (made, _):
        _record(made)
        many, single = (pycrictl("-H", names, "ps") for names in (f"m[01-{HOSTS}]", "m01"))
        return interleave(
            lambda: _wall_s(made, many),
            lambda: _wall_s(made, single),
            rounds=ROUNDS,
            warm_up_rounds=2,
        )


def _one() -> Measured:
    with _hosts(1) as (made, endpoint):
        folder = _install(made, made.hosts["m01"], "")
        (folder / "pycrictl").write_text(made.program.read_text())
        _wall_s(made, pycrictl("-H", "m01", "ps"))
        (socket,) = [path for path in (made.folder / "run/pycrictl").iterdir() if path.is_socket()]
        kept = ["ssh", "-F", str(made.folder / "ssh_config"), "-S", str(socket), "m01", "true"]
        config = str(made.hosts["m01"].folder / "crictl.yaml")  # read there as well
        local = pycrictl("-c", config, "-r", endpoint, "ps")
        return interleave(
            lambda: _wall_s(made, pycrictl("-H", "m01", "ps")),
            lambda: _wall_s(made, kept) + 1.2 * _wall_s(made, local),
            rounds=ROUNDS,
        )


BENCHMARKS = (
    Benchmark(
        name="hosts-1",
        text="wall time of 'pycrictl -H HOST ps' over a kept connection"
        " / of 'ssh HOST true' over it and 1.2 times a local 'ps'",
        goal=Goal("<=", 1.0),
        show=milliseconds,
        measure=_one,
    ),
    Benchmark(
        name="hosts-20",
        text="wall time of 'ps' on 20 hosts / on one of them; ssh and sshd are real, the hosts'"
        " processors are simulated: their program sleeps for the time of a real 'ps', then"
        " writes what that wrote",
        goal=Goal("<=", 3.0),
        show=milliseconds,
        measure=_twenty,
    ),
)
