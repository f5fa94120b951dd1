"""Completion in real shells with IDs, names and paths from a real containerd."""

from __future__ import annotations

from pathlib import Path

from tests.cli import shells
from tests.waiting import wait_until

from .lab import Lab

NAMES = (
    "mkdir '/tmp/a dir'; echo > \"/tmp/a dir/it's 1:2\"; ln -s 'a dir' /tmp/link;"
    " echo > '/tmp/b\\1'"
)
"""Creates files with names that shells must quote, and a link to a directory."""


def test_ids_names_and_paths_in_every_shell(lab: Lab, tmp_path: Path) -> None:
    kubelet = lab.node.kubelet
    pod = kubelet.run_pod("web")
    reference = lab.reference(lab.busybox)
    kubelet.pull(reference)
    command = ["sh", "-c", f"{NAMES}; echo > /tmp/ready; exec sleep 1000"]
    container = kubelet.create_container(pod, reference, command, name="main")
    kubelet.start_container(container)
    created = kubelet.create_container(pod, reference, ["sleep", "1000"], name="side")
    home = tmp_path / "a home"
    home.mkdir()
    (home / "my pod.json").touch()
    shells.install_program(home, remembers=True)
    env = shells.environment(home, CONTAINER_RUNTIME_ENDPOINT=lab.node.endpoint)
    wait_until(lambda: "ready" in kubelet.run(container, "ls", "/tmp"))

    # The typed text, the word after completion, and the line with that word quoted.
    short, repository = container[:13], reference.rpartition(":")[0]
    file = "main:/tmp/a dir/it's 1:2"
    cases = [
        (f"exec {short[:6]}", short, f"exec {short} "),
        ("exec -it mai", "main", "exec -it main "),
        (f"start {created[:6]}", created[:13], f"start {created[:13]} "),
        (f"-t 30s stop -t=3 {short[:6]}", short, f"-t 30s stop -t=3 {short} "),
        ("stopp we", "web", "stopp web "),
        (f"ps --pod={pod.id[:6]}", f"--pod={pod.id[:13]}", f"ps --pod={pod.id[:13]} "),
        ("image-pull-progress defa", "default/web", "image-pull-progress default/web "),
        (f"rmi {repository}", reference, f"rmi {reference} "),
        ("cp mai", "main:", "cp main:"),
        ("cp main:/tmp/a", "main:/tmp/a dir/", "cp main:/tmp/a\\ dir/"),
        ("cp main:/tmp/li", "main:/tmp/link/", "cp main:/tmp/link/"),
        ("cp main:/tmp/a\\ dir/it", file, "cp main:/tmp/a\\ dir/it\\'s\\ 1:2 "),
        ('cp "main:/tmp/a dir/it', file, f'cp "{file}" '),
        ("cp main:/tmp/b", "main:/tmp/b\\1", "cp main:/tmp/b\\\\1 "),
        ("cp my\\ pod.json web/main:/et", "web/main:/etc/", "cp my\\ pod.json web/main:/etc/"),
        ("-r /nonexistent logs ma", "", "-r /nonexistent logs ma"),
    ]
    of_paths = [case for case in cases if case[0].startswith("cp ")]
    with (
        shells.bash(home, env) as bash,
        shells.bash(home, env, with_package=True) as packaged,
        shells.bash(home, env) as careful,
        shells.zsh(home, env) as zsh,
    ):
        careful.run("set -u; IFS=:")
        for case in cases:
            # Paths are tried in all shells, as each quotes differently.
            for shell in (bash, zsh, packaged, careful) if case in of_paths else (bash,):
                assert shell.complete(f"pycrictl {case[0]}") == f"pycrictl {case[2]}"
        listed, line = bash.press("pycrictl logs ", "\t\t")
        assert f"main  ({short}, running, in default/web)" in listed
        assert f"side  ({created[:13]}, created, in default/web)" in listed
        assert line == "pycrictl logs "
        listed, _ = zsh.press("pycrictl logs ", "\t")
        assert f"{short}, running, in default/web" in listed
    answers = shells.fish(home, env, [f"pycrictl {typed}" for typed, _, _ in cases])
    assert [set(words) for words in answers] == [{word} - {""} for _, word, _ in cases]
    assert answers[0][short] == "default/web/main, running"
