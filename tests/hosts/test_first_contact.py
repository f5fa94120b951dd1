"""The first command on a host: what is asked and sent, and what refuses it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pycrictl import __version__
from pycrictl._proto import cri_pb2
from tests.fakecri import FakeServer
from tests.hosts.shell import Shell
from tests.hosts.sshd import ROOT, Host, Hosts
from tests.waiting import wait_until

VERSION = cri_pb2.VersionResponse(
    version="1", runtime_name="r", runtime_version="2", runtime_api_version="v1"
)
TABLE = "Version:  1\nRuntimeName:  r\nRuntimeVersion:  2\nRuntimeApiVersion:  v1\n"
NAME = rf"{re.escape(__version__)}-{os.uname().machine}-[0-9a-f]{{64}}"


@pytest.fixture
def runtime(fake: FakeServer) -> str:
    fake.offer("Version", VERSION)
    return fake.path


def add(hosts: Hosts, runtime: str, name: str = "h", **more: Any) -> Host:
    host = hosts.add(name, **more)
    host.serve(runtime)
    return host


def tool(hosts: Hosts, name: str, script: str) -> dict[str, str]:
    """Make a program for hosts; return the variables by which they find it."""
    folder = hosts.folder / "tools"
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def add_admin(hosts: Hosts, runtime: str, rights: str, **more: Any) -> Path:
    """Add a host with a user ``admin``; return the user's home."""
    home = hosts.folder / "admin"
    home.mkdir()
    os.chown(home, 7001, 7001)
    users = f"admin:x:7001:7001::{home}:/bin/bash\n"
    add(hosts, runtime, users=users, sudoers=f"admin ALL=(ALL:ALL) {rights}\n", **more)
    return home


def kept(host: Host) -> list[Path]:
    return sorted(host.cache.iterdir()) if host.cache.exists() else []


def require_table(hosts: Hosts, *words: str) -> None:
    done = hosts.run(*words, "-H", "h", "version")
    assert (done.stdout, done.stderr, done.returncode) == (TABLE, "", 0)


def refusal(hosts: Hosts, *words: str) -> str:
    """Return the only error of a command that the host does not run, and its hint."""
    done = hosts.run(*words, "-H", "h", "version")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "Traceback" not in done.stderr
    first, *rest = done.stderr.splitlines()
    assert first.startswith("pycrictl: h: ")
    assert [line for line in rest if not line.startswith("hint: ")] == []
    return done.stderr


def test_the_program_is_sent_once_and_kept_for_its_user_only(fresh: Hosts, runtime: str) -> None:
    host = add(fresh, runtime)
    require_table(fresh)
    (folder,) = kept(host)
    assert re.fullmatch(NAME, folder.name)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(host.cache.stat().st_mode) == 0o700
    number = folder.stat().st_ino
    for _ in range(2):
        require_table(fresh)
        fresh.disconnect()
    assert kept(host) == [folder]
    assert folder.stat().st_ino == number


def test_older_copies_are_removed_and_nothing_else(fresh: Hosts, runtime: str) -> None:
    host = add(fresh, runtime)
    require_table(fresh)
    older = host.cache / f"0.0.1-{os.uname().machine}-{'0' * 64}"
    others = [host.cache / name for name in ("bin-0123", "programs", "0.0.1-notes")]
    for folder in (older, *others):
        (folder / "lib").mkdir(parents=True)
        os.utime(folder, (0, 0))
    fresh.program.write_text(f"{fresh.program.read_text()}# newer\n")
    fresh.disconnect()
    require_table(fresh)
    assert not older.exists()
    assert len(kept(host)) == 2 + len(others)  # the copy of a moment ago may still be in use


@pytest.mark.parametrize("change", ["content", "mode", "more"])
def test_a_copy_that_is_not_as_it_was_sent_is_not_run(
    fresh: Hosts, runtime: str, change: str
) -> None:
    host = add(fresh, runtime)
    require_table(fresh)
    (folder,) = kept(host)
    mark = host.folder / "was-run"
    evil = f"#!/bin/sh\ntouch {mark}\n"
    if change == "content":
        (folder / "pycrictl").write_text(evil)
    elif change == "mode":
        folder.chmod(0o755)
    else:
        (folder / "sitecustomize.py").write_text("")
    fresh.disconnect()  # the copy is checked when a connection is opened
    require_table(fresh)
    assert not mark.exists()
    (again,) = kept(host)
    assert stat.S_IMODE(again.stat().st_mode) == 0o700
    assert [path.name for path in again.iterdir()] == ["pycrictl"]


def test_a_cache_that_is_a_link_is_refused(fresh: Hosts, runtime: str) -> None:
    host = add(fresh, runtime)
    (host.folder / "elsewhere").mkdir(mode=0o777)
    (host.home / ".cache").mkdir()
    host.cache.symlink_to(host.folder / "elsewhere")
    shutil.chown(host.folder / "elsewhere", "nobody")
    assert "another user owns it" in refusal(fresh)


@pytest.mark.parametrize(("version", "copies"), [(__version__, 0), ("0.0.1", 1)])
def test_only_the_same_version_on_path_is_used(
    fresh: Hosts, runtime: str, version: str, copies: int
) -> None:
    own = fresh.program.read_text().partition("\n")[2]
    says = f'[ "$1" != --version ] || exec echo pycrictl version {version}\n{own}'
    host = add(fresh, runtime, variables=tool(fresh, "pycrictl", says))
    require_table(fresh)
    assert len(kept(host)) == copies


def test_no_keep_leaves_nothing(fresh: Hosts, runtime: str) -> None:
    """Nor does a single-file program, which unpacks itself into the cache folder."""
    unpacks = 'mkdir -p "${XDG_CACHE_HOME:-$HOME/.cache}/pycrictl/bin-0"'
    first, rest = fresh.program.read_text().split("\n", 1)
    fresh.program.write_text(f"{first}\n{unpacks}\n{rest}")
    scratch = fresh.folder / "scratch"
    scratch.mkdir()
    host = add(fresh, runtime, variables={"TMPDIR": str(scratch)})
    require_table(fresh, "--no-keep")
    wait_until(lambda: not [*scratch.iterdir()])
    assert kept(host) == []


def test_an_archive_of_the_folder_can_be_sent(fresh: Hosts, runtime: str) -> None:
    top = fresh.folder / f"pycrictl-{__version__}-linux-{os.uname().machine}"
    (top / "lib/deep").mkdir(parents=True)
    (top / "share").mkdir()
    (top / "share/page").write_text("not needed")
    (top / "lib/deep/module").write_text("x" * 100_000)
    shutil.copy(fresh.program, top / "pycrictl")
    archive = Path(f"{top}.tar.xz")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(top, top.name)
    host = add(fresh, runtime)
    done = fresh.run("-H", "h", "version", program=archive)
    assert (done.stdout, done.stderr) == (TABLE, "")
    (folder,) = kept(host)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == ["lib/deep/module", "pycrictl"]


def test_for_another_machine_the_file_of_the_release_is_named_or_sent(
    fresh: Hosts, runtime: str
) -> None:
    host = add(fresh, runtime, variables=tool(fresh, "uname", "echo aarch64"))
    done = fresh.run("-H", "h", "version", program="")
    file = f"pycrictl-{__version__}-linux-aarch64.bin"
    error = f"it has no pycrictl {__version__}, and none for aarch64 can be sent\n"
    assert done.stderr.startswith(f"pycrictl: h: {error}hint: put {file} of https://")
    programs = Path(fresh.environ["HOME"], ".cache/pycrictl/programs")
    programs.mkdir(parents=True)
    shutil.copy(fresh.program, programs)  # for this machine
    (programs / file).write_text(f"{fresh.program.read_text()}# other\n")
    done = fresh.run("-H", "h", "version", program="")
    assert (done.stdout, done.stderr) == (TABLE, "")
    (folder,) = kept(host)
    assert folder.name.startswith(f"{__version__}-aarch64-")
    assert (folder / "pycrictl").read_text().endswith("# other\n")


@pytest.mark.parametrize(
    "shell", ["/usr/bin/fish", "/usr/bin/tcsh", "/usr/bin/zsh", "/bin/sh", "/bin/bash"]
)
def test_login_shells_of_any_kind(fresh: Hosts, runtime: str, shell: str) -> None:
    """Bash reads a file that prints."""
    assert Path(shell).exists(), "run tests/e2e/node/install.sh"
    rc = "echo Welcome; echo pycrictl; printf 'no line end'; echo bad >&2\n"
    add(fresh, runtime, shell=shell, rc=rc)
    for _ in range(2):
        require_table(fresh)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("ForceCommand echo only backups here", 'answers "only backups here"'),
        ("ForceCommand internal-sftp", "does not run the requested command"),
        ("ForceCommand printf '\\033[2Jx\\n'", r'answers "\x1b[2Jx"'),
        ("AllowUsers nobody", "Permission denied"),
    ],
)
def test_accounts_that_run_no_commands(fresh: Hosts, runtime: str, config: str, error: str) -> None:
    add(fresh, runtime, config=config)
    assert error in refusal(fresh)


@pytest.mark.parametrize(
    ("setup", "error", "hint"),
    [
        ("mount -t tmpfs -o size=8k tmpfs $1/root; dd if=/dev/zero of=$1/root/x bs=1k count=8 || :",
         "No space left on device", ""),
        ("mount -t tmpfs -o noexec tmpfs $1/root", "ermission denied", "--no-keep"),
        ("mount -t tmpfs -o ro tmpfs $1/root", "ead-only file system", "--no-keep"),
    ],
    ids=["full", "noexec", "read-only"],
)  # fmt: skip
def test_homes_that_take_no_program(
    fresh: Hosts, runtime: str, setup: str, error: str, hint: str
) -> None:
    add(fresh, runtime, setup=setup)
    said = refusal(fresh)
    assert error in said
    assert hint in said
    if hint:
        require_table(fresh, "--no-keep")


def test_a_host_without_tar_says_so(fresh: Hosts, runtime: str) -> None:
    tools = fresh.folder / "tools"
    tools.mkdir()
    for name in "sh env uname mkdir chmod ls mktemp find sort xargs sha256sum rm mv cat".split():
        (tools / name).symlink_to(str(shutil.which(name)))
    add(fresh, runtime, variables={"PATH": str(tools)})
    assert "tar: not found" in refusal(fresh)


def test_a_host_with_musl_needs_another_program(fresh: Hosts, runtime: str) -> None:
    add(fresh, runtime, variables=tool(fresh, "ldd", "echo 'musl libc (x86_64)'"))
    assert "-musl can be sent\nhint: no release file runs with musl" in refusal(fresh)


def test_a_standalone_program_sends_itself(fresh: Hosts, runtime: str) -> None:
    """A script stands for its interpreter; only the program and its modules travel."""
    host = add(fresh, runtime)
    own = fresh.folder / "standalone"
    (own / "share").mkdir(parents=True)
    (own / "share/page").write_text("not needed")
    shutil.copytree(ROOT / "pycrictl", own / "lib/pycrictl", ignore=shutil.ignore_patterns("__py*"))
    (own / "pycrictl").write_text(
        f"#!{sys.executable} -B\nimport sys\nsys.frozen, sys.executable = True, __file__\n"
        "sys.path.insert(0, __file__.replace('/pycrictl', '/lib'))\n"
        "from pycrictl.__main__ import run\nrun()\n"
    )
    (own / "pycrictl").chmod(0o755)
    done = subprocess.run(
        [own / "pycrictl", "-H", "h", "version"],
        capture_output=True,
        text=True,
        check=False,
        env={**fresh.environ, "PYTHONPATH": ""},
    )
    assert (done.stdout, done.stderr, done.returncode) == (TABLE, "", 0)
    (folder,) = kept(host)
    sent, there = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (own, folder)
    )
    assert sent.pop(Path("share/page"))
    assert there == sent


def test_an_unknown_host_key_is_never_accepted(fresh: Hosts, runtime: str) -> None:
    host = add(fresh, runtime)
    (fresh.folder / "known_hosts").write_text("")
    assert "Host key verification failed" in refusal(fresh)
    assert (fresh.folder / "known_hosts").read_text() == ""
    assert kept(host) == []


def test_agent_and_display_are_not_forwarded(fresh: Hosts, runtime: str) -> None:
    """Not even if the user's configuration asks for it."""
    with (fresh.folder / "ssh_config").open("a") as file:
        file.write("Host *\n  ForwardAgent yes\n  RemoteCommand true\n  RequestTTY force\n")
    seen = fresh.folder / "seen"
    add(fresh, runtime, rc=f"env > {seen}\n", config="AcceptEnv *")
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(fresh.folder / "agent")]) as agent:
        wait_until((fresh.folder / "agent").exists)
        done = fresh.run(
            *("-H", "h", "version"), environ={"SSH_AUTH_SOCK": str(fresh.folder / "agent")}
        )
        agent.terminate()
    assert done.stdout == TABLE
    assert "SSH_CONNECTION" in seen.read_text()
    assert "SSH_AUTH_SOCK" not in seen.read_text()


def test_another_user_with_sudo(fresh: Hosts, runtime: str) -> None:
    home = add_admin(fresh, runtime, "NOPASSWD: ALL")
    socket = Path(runtime)
    socket.parent.chmod(0o755)
    socket.chmod(0o600)
    done = fresh.run("-H", "admin@h", "-r", f"unix://{runtime}", "version")
    assert done.returncode == 1
    assert "permission denied" in done.stderr
    assert "--sudo" in done.stderr
    done = fresh.run("--sudo", "-H", "admin@h", "-r", f"unix://{runtime}", "version")
    assert (done.stdout, done.stderr) == (TABLE, "")
    (folder,) = (home / ".cache/pycrictl").iterdir()
    assert folder.stat().st_uid == 7001
    assert kept(fresh.hosts["h"]) == []


def test_sudos_password_is_asked_for_on_the_terminal(fresh: Hosts, runtime: str) -> None:
    words = ["openssl", "passwd", "-6", "a \\\\ secret"]
    hashed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    rule = f"admin:{hashed}:1::::::"
    # The file itself is mounted, so it has to stay the same one.
    setup = f"(echo '{rule}'; cat /etc/shadow) > $1/x; cat $1/x > /etc/shadow"
    add_admin(fresh, runtime, "ALL", setup=setup)
    done = fresh.run("--sudo", "-H", "admin@h", "version")  # without a terminal
    assert (done.stderr, done.returncode) == (
        "pycrictl: admin@h: sudo: a password is required\n",
        1,
    )
    with Shell(
        fresh.environ, fresh.words("--sudo", "-H", "admin@h", "-r", f"unix://{runtime}")
    ) as shell:
        shell.type("$CLIENT version; echo status $?\n")
        for password in ("wrong", "a \\\\ secret"):
            shell.expect("password for admin: $")
            shell.type(f"{password}\n")
        said = shell.expect(r"status \d")
        assert "RuntimeName:  r" in said
        assert "status 0" in said
        assert "secret" not in said
