"""Completion in real shells with what a real containerd knows."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cli import shells

from .lab import Lab

NAMES = (
    "mkdir '/tmp/a dir'; echo > \"/tmp/a dir/it's 1:2\"; ln -s 'a dir' /tmp/link;"
    " echo > '/tmp/b\\1'"
)
"""Makes names that shells must quote, and a link that leads to a directory."""


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
    shells.install_program(home)
    env = shells.environment(home, CONTAINER_RUNTIME_ENDPOINT=lab.node.endpoint)
    wait_for_path(home, env, "pycrictl cp main:/tmp/read", "main:/tmp/ready")

    # What is typed, the word that it becomes, and the line with that word as shells quote it.
    short, pod_id, repository = container[:13], pod.id[:13], reference.rpartition(":")[0]
    cases = [
        (f"exec {short[:6]}", short, f"exec {short} "),
        ("exec -it mai", "main", "exec -it main "),
        (f"exec {short} /bin/wge", "/bin/wget", f"exec {short} /bin/wget "),
        (f"start {created[:6]}", created[:13], f"start {created[:13]} "),
        (
            f"--timeout 30s stop --timeout=3 {short[:6]}",
            short,
            f"--timeout 30s stop --timeout=3 {short} ",
        ),
        ("logs ma", "main", "logs main "),
        ("stopp we", "web", "stopp web "),
        (f"stopp {pod_id[:6]}", pod_id, f"stopp {pod_id} "),
        (f"ps --pod={pod_id[:6]}", f"--pod={pod_id}", f"ps --pod={pod_id} "),
        ("image-pull-progress defa", "default/web", "image-pull-progress default/web "),
        (f"rmi {repository}", reference, f"rmi {reference} "),
        ("cp mai", "main:", "cp main:"),
        ("cp main:/tmp/a", "main:/tmp/a dir/", "cp main:/tmp/a\\ dir/"),
        ("cp main:/tmp/li", "main:/tmp/link/", "cp main:/tmp/link/"),
        (
            "cp main:/tmp/a\\ dir/it",
            "main:/tmp/a dir/it's 1:2",
            "cp main:/tmp/a\\ dir/it\\'s\\ 1:2 ",
        ),
        (
            'cp "main:/tmp/a dir/it',
            "main:/tmp/a dir/it's 1:2",
            'cp "main:/tmp/a dir/it\'s 1:2" ',
        ),
        ("cp main:/tmp/b", "main:/tmp/b\\1", "cp main:/tmp/b\\\\1 "),
        ("cp my", "my pod.json", "cp my\\ pod.json "),
        ("cp my\\ pod.json web/main:/et", "web/main:/etc/", "cp my\\ pod.json web/main:/etc/"),
        ("pull image j", "", "pull image j"),
        ("-r /nonexistent logs ma", "", "-r /nonexistent logs ma"),
    ]
    of_paths = [case for case in cases if case[0].startswith("cp ")]
    with shells.bash(home, env) as bash, shells.zsh(home, env) as zsh:
        for typed, _, line in cases:
            for shell in (bash, zsh):
                assert shell.complete(f"pycrictl {typed}") == f"pycrictl {line}"
    with shells.bash(home, env, with_package=True) as bash:
        for typed, _, line in of_paths:
            assert bash.complete(f"pycrictl {typed}") == f"pycrictl {line}"
    with shells.bash(home, env) as bash:
        listed, line = bash.press("pycrictl logs ", "\t\t")
        assert f"main  ({short}, running, in default/web)" in listed
        assert f"side  ({created[:13]}, created, in default/web)" in listed
        assert line == "pycrictl logs "
    with shells.zsh(home, env) as zsh:
        listed, _ = zsh.press("pycrictl logs ", "\t")
        assert f"{short}, running, in default/web" in listed
    with shells.bash(home, env) as bash:
        bash.run("set -u; IFS=:")  # as careful people have it, and careless ones
        for typed, _, line in of_paths:
            assert bash.complete(f"pycrictl {typed}") == f"pycrictl {line}"
    found = shells.fish(home, env, [f"pycrictl {typed}" for typed, _, _ in cases])
    assert [set(words) for words in found] == [{word} - {""} for _, word, _ in cases]
    assert found[0][short] == "default/web/main, running"


def wait_for_path(home: Path, env: dict[str, str], line: str, word: str) -> None:
    for _ in range(100):
        (found,) = shells.fish(home, env, [line])
        if word in found:
            return
        time.sleep(0.1)
    raise AssertionError(f"{word} is not found")
