"""The scene of the recordings in ``tests.captures``, built anew on the throwaway node.

Three pods, five containers and five images, made with the program's own commands from the same
configuration files. A recorded command line runs here with this scene's socket, registry, folder
and IDs in place of the recorded ones.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from unittest.mock import patch

from tests.captures import capture, runtimes, scene
from tests.cli.run import Run
from tests.waiting import wait_until

from .images import Image, random_file, text_file
from .lab import Lab

FILES: Final = Path(__file__).parent / "data" / "scene"
WAIT_S: Final = 60

REGISTRY: Final = "127.0.0.1:5555"
SOCKETS: Final = ("run/proxy.sock", "node/containerd.sock")
"""Paths below the scene's folder. Most recorded commands used the first socket."""

FOLDER: Final = "/scene"
LOGIN: Final = ("u1", "pw1")
IN_FILES: Final = ("MA", "MB", "MC", "MI", "MP", "MT")
"""Files in the scene's folder to which recorded commands write the IDs of what they create."""

_DIGEST_OF_TOOL: Final = (
    "$(python3 $S/registry.py --digests"
    """ | python3 -c 'import json,sys; print(json.load(sys.stdin)["tool"])')"""
)
_NO_DEFAULTS: Final = "$S/noetc "
"""Precedes commands that were run without a default configuration file."""

_PLAIN: Final = re.compile(r"crictl [^|;&<>`]*")


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str


class Scene:
    """The scene; ``build`` makes it, ``run`` runs recorded command lines in it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = lab.folder / "scene"
        self.ids: dict[str, str] = {}
        self._images: dict[str, Image] = {}

    def build(self) -> None:
        self._write_files()
        self._push_images()
        node = self.lab.node
        node.configure({"sandbox_image": self.lab.reference(self._images["pause"])})
        node.restart()
        node.kubelet.remove_image(self.lab.reference(self.lab.pause))
        self.pull_images()
        ids = self.ids
        ids["PW"] = self.made("runp $S/pod-web.json")
        ids["PD"] = self.made("runp $S/pod-db.json")
        ids["PB"] = self.made("runp $S/pod-batch.yaml")
        for name, pod, container in (
            ("CW", "web", "web-run"),
            ("CC", "web", "web-created"),
            ("CO", "db", "db-ok"),
            ("CF", "db", "db-fail"),
            ("CR", "db", "db-run"),
        ):
            of_pod = {"web": "$PW", "db": "$PD"}[pod]
            ids[name] = self.made(f"create {of_pod} $S/ctr-{container}.json $S/pod-{pod}.json")
            if name != "CC":
                self.made(f"start ${name}")
        self.made("stopp $PB")
        wait_until(lambda: len(self.made("ps -aq --state exited").split()) >= 2)

    def pull_images(self) -> None:
        for name in ("pause", "busybox", "latest", "app"):
            self.made(f"pull {self.lab.reference(self._images[name])}")
        for name in ("tool", "untagged"):
            self.made(f"pull {self.lab.reference_by_digest(self._images[name])}")

    def made(self, words: str) -> str:
        outcome = self.run(f"crictl {words}")
        assert outcome.code == 0, f"{words}: {outcome.stderr}"
        return outcome.stdout.strip()

    def run(self, command: str, *, in_shell: bool = False) -> Outcome:
        """Run a recorded command line, in this process if it needs no shell."""
        if "/private/" in command:
            self.lab.registry.require_login(*LOGIN)
        else:
            self.lab.registry.heal()
        environ = {"CRI_CONFIG_FILE": str(self.folder / "crictl.yaml")}
        if _NO_DEFAULTS in command:  # also drops a ``time`` before it
            command, environ = command.partition(_NO_DEFAULTS)[2], {}
        command = self._here(command)
        if not in_shell and _PLAIN.fullmatch(command) and "$(" not in command:
            with patch.object(sys, "argv", ["crictl"]):
                done = Run(*shlex.split(self._with_ids(command))[1:], environ=environ)
            return Outcome(done.code, done.stdout, done.stderr)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        shell = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, **self.ids, **environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return Outcome(shell.returncode, shell.stdout, shell.stderr)

    def as_recorded(self, text: str) -> str:
        text = text.replace(str(self.folder), FOLDER)
        text = text.replace(f"/{self.lab.folder.name}", "/crictl-scene")
        return text.replace(self.lab.registry.host, REGISTRY)

    def names(self) -> dict[str, str]:
        names = {identifier: name for name, identifier in self.ids.items()}
        names |= {(self.folder / name).read_text().strip(): name for name in IN_FILES}
        for name, image in self._images.items():
            if name == "secret":  # no recording lists it
                continue
            role = "busybox" if name == "latest" else name
            names[image.config_digest.removeprefix("sha256:")] = role
            names[image.digest.removeprefix("sha256:")] = f"{role}@"
        return names

    def _here(self, command: str) -> str:
        command = command.replace(_DIGEST_OF_TOOL, self._images["tool"].digest)
        # On a busy machine, commands start later than in the recordings.
        command = re.sub(r"-s INT \d ", "-s INT 10 ", command)
        command = command.replace("$S/", f"{self.folder}/").replace(REGISTRY, self._host)
        return re.sub(rf"(?<![\w.-]){FOLDER}\b", str(self.folder), command)

    @property
    def _host(self) -> str:
        return self.lab.registry.host

    def _with_ids(self, command: str) -> str:
        command = re.sub(
            r"\$\{(\w\w):0:(\d)\}", lambda match: self.ids[match[1]][: int(match[2])], command
        )
        return re.sub(r"\$([A-Z]{2})\b", lambda match: self.ids[match[1]], command)

    def _write_files(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for file in FILES.iterdir():
            text = file.read_text("utf-8").replace(REGISTRY, self._host)
            text = text.replace("/scene/", f"{self.folder}/")
            text = text.replace("/crictl-scene", f"/{self.lab.folder.name}")
            (self.folder / file.name).write_text(text, "utf-8")
        for name, path in zip(("crictl.yaml", "real.yaml"), SOCKETS, strict=True):
            socket = self.folder / path
            socket.parent.mkdir()
            socket.symlink_to(self.lab.node.socket_path)
            (self.folder / name).write_text(
                f"runtime-endpoint: unix://{socket}\nimage-endpoint: unix://{socket}\ntimeout: 20\n"
            )
        previous = self.folder / "logs" / "db" / "plain" / "0.log"
        previous.parent.mkdir(parents=True)
        previous.write_text("2026-01-02T03:04:05.6Z stdout F previous attempt line 1\n")
        program = self.folder / "bin" / "crictl"
        program.write_text(
            f"#!{sys.executable}\nfrom pycrictl.__main__ import run\n\nrun()\n", "utf-8"
        )
        program.chmod(0o755)

    def _push_images(self) -> None:
        layout, base = self.lab.layout, self.lab.base
        env = ["PATH=/bin"]
        shell = {"Cmd": ["/bin/sh"], "Env": env}
        labels = {"maintainer": "scene <scene@example.com>"}
        hello = layout.layer([text_file("etc/hello", "hello\n")])
        data = layout.layer([random_file("data", 2_500_000, seed=1)], level=0)
        first, second = (layout.layer([text_file("app", text)]) for text in ("one", "two"))
        pause = {"Entrypoint": ["/bin/sleep", "1000000"], "Cmd": [], "Env": env}
        for role, name, layers, config in (
            ("pause", "pause:3.9", [base], pause),
            ("busybox", "busybox:1", [base, hello], {**shell, "Labels": labels}),
            ("latest", "busybox:latest", [base, hello], {**shell, "Labels": labels}),
            ("tool", "tool:1", [base, data], {**shell, "User": "1000:1000"}),
            ("untagged", "app:v0", [base, first], {**shell, "User": "nobody"}),
            ("app", "app:v1", [base, second], {**shell, "User": "nobody"}),
            ("secret", "private/secret:1", [base], shell),
        ):
            self._images[role] = layout.image(name, layers, config=config)
            self.lab.push(self._images[role])


@cache
def recorded_names() -> Mapping[str, str]:
    names = {identifier: name for name, identifier in runtimes.IDS.items()}
    started = [rpc["request"]["container_id"] for rpc in capture("m-start-rest").rpc[1:]]
    names |= zip(started, ("MC", "MI", "MT"), strict=True)
    names[capture("m-create").output.strip()] = "MA"
    names[capture("m-create-with-pull").output.strip()] = "MB"
    names[capture("m-rmp").rpc[-1]["request"]["pod_sandbox_id"]] = "MP"
    for image in scene.real_images():
        repository, _, digest = image.repo_digests[0].partition("@sha256:")
        role = repository.rpartition("/")[2]
        if role == "app" and not image.repo_tags:
            role = "untagged"
        names[image.id.removeprefix("sha256:")] = role
        names[digest] = f"{role}@"
    return names
