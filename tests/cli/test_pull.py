from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.redact import MASK
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status

REF = "sha256:" + "34" * 32


def pulled(reference: str = REF) -> cri_pb2.PullImageResponse:
    return cri_pb2.PullImageResponse(image_ref=reference)


def pull(fake: FakeServer, *words: str) -> Run:
    return Run("-r", fake.endpoint, "pull", *words)


def requests(fake: FakeServer) -> list[cri_pb2.PullImageRequest]:
    return [call.request for call in fake.calls if call.method == "PullImage"]


def test_prints_the_reference_and_is_quiet_without_a_terminal(fake: FakeServer) -> None:
    fake.prepare("PullImage", pulled())
    run = pull(fake, "127.0.0.1:5555/busybox:1")
    assert (run.code, run.stdout, run.stderr) == (0, f"Image is up to date for {REF}\n", "")
    assert fake.methods() == ["PullImage"]
    assert requests(fake)[0] == cri_pb2.PullImageRequest(
        image=cri_pb2.ImageSpec(image="127.0.0.1:5555/busybox:1")
    )
    assert fake.calls[0].deadline_s is None


def test_several_images_one_after_the_other(fake: FakeServer) -> None:
    missing = Status(grpc.StatusCode.NOT_FOUND, "manifest unknown")
    fake.prepare("PullImage", pulled("a"), missing, pulled("c"))
    run = pull(fake, "x/a", "x/b", "x/c")
    assert run.code == 1
    assert run.stdout == "Image is up to date for a\nImage is up to date for c\n"
    assert run.stderr == (
        'pycrictl: pulling "x/b": the registry does not have it\n'
        "hint: check its name and tag, including upper and lower case\n"
    )
    assert [request.image.image for request in requests(fake)] == ["x/a", "x/b", "x/c"]


CHAIN = (
    'failed to pull and unpack image "reg.example:5000/a:1": failed to resolve reference: failed to'
    ' do request: Head "https://reg.example:5000/v2/a/manifests/1": dial tcp 10.0.0.1: connect:'
    " connection refused"
)


def test_a_failure_is_said_in_words_and_debug_has_the_runtimes(fake: FakeServer) -> None:
    refused = Status(grpc.StatusCode.UNKNOWN, CHAIN)
    fake.prepare("PullImage", refused, refused)
    run = pull(fake, "reg.example:5000/a:1")
    assert (run.code, run.stderr.splitlines()) == (
        1,
        [
            'pycrictl: pulling "reg.example:5000/a:1": it could not be fetched from its registry or'
            " a mirror of it (connection refused)",
            "hint: 'pycrictl doctor --registry reg.example:5000/a' tests it and its mirrors",
        ],
    )
    assert CHAIN in Run("-r", fake.endpoint, "-D", "pull", "reg.example:5000/a:1").stderr


def test_a_time_limit_of_this_program_is_not_the_registrys(fake: FakeServer) -> None:
    is_over = threading.Event()

    def slow(request: object, context: grpc.ServicerContext) -> Status:
        is_over.wait(20)
        return Status(grpc.StatusCode.DEADLINE_EXCEEDED, "context deadline exceeded")

    fake.prepare("PullImage", slow)
    run = pull(fake, "--pull-timeout", "2s", "a")
    is_over.set()
    assert (run.code, run.stdout) == (1, "")
    assert "registry" not in run.stderr
    assert "--pull-timeout" in run.stderr


def test_a_name_that_no_runtime_accepts_is_refused_and_the_others_are_pulled(
    fake: FakeServer,
) -> None:
    fake.prepare("PullImage", pulled("a"))
    run = pull(fake, "registry/Shop/big:1", "a")
    assert (run.code, run.stdout) == (1, "Image is up to date for a\n")
    assert run.stderr == (
        'pycrictl: "registry/Shop/big:1" is not the name of an image: "Shop" has upper-case'
        " letters\nhint: use lower case: registry/shop/big:1\n"
    )


def test_words_that_nobody_knows_are_the_runtimes(fake: FakeServer) -> None:
    fake.prepare("PullImage", Status(grpc.StatusCode.UNKNOWN, "the moon is full"))
    assert pull(fake, "a").stderr == 'pycrictl: pulling "a": the moon is full\n'


POD = {"metadata": {"name": "web", "namespace": "default", "uid": "u-1"}}


@pytest.mark.parametrize(
    ("words", "environ", "request_"),
    [
        ("--creds u1:p:w", {}, {"auth": {"username": "u1", "password": "p:w"}}),
        ("--creds u1", {}, {"auth": {"username": "u1"}}),
        ("--auth dTE6cHcx", {}, {"auth": {"auth": "dTE6cHcx"}}),
        ("", {"CRICTL_CREDS": "u1:pw"}, {"auth": {"username": "u1", "password": "pw"}}),
        ("--pod-config POD", {}, {"sandbox_config": POD}),
        (
            "-a k1=v1,k2=v=2 --annotation k3=",
            {},
            {"image": {"annotations": {"k1": "v1", "k2": "v=2", "k3": ""}}},
        ),
    ],
    ids=str,
)
def test_what_is_sent(
    fake: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    environ: dict[str, str],
    request_: dict[str, Any],
) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    fake.prepare("PullImage", pulled())
    assert pull(fake, *words.replace("POD", str(tmp_path / "pod.json")).split(), "a").code == 0
    expected = json_format.ParseDict(request_, cri_pb2.PullImageRequest())
    expected.image.image = "a"
    assert requests(fake) == [expected]


def logins(folder: Path, user: str = "me") -> str:
    file = folder / "config.json"
    file.write_text(json.dumps({"auths": {"r.test": {"username": user, "password": "hush"}}}))
    return str(file)


@pytest.mark.parametrize(
    ("words", "environ", "user"),
    [
        ("--authfile FILE r.test/a", {}, "me"),
        ("--docker-config FOLDER r.test/a", {}, "me"),
        ("r.test/a", {"DOCKER_CONFIG": "FOLDER"}, "me"),
        ("r.test/a", {"REGISTRY_AUTH_FILE": "FILE"}, "me"),
        ("--creds you:x r.test/a", {"REGISTRY_AUTH_FILE": "FILE"}, "you"),
        ("--no-credentials r.test/a", {"REGISTRY_AUTH_FILE": "FILE"}, ""),
        ("--authfile FILE other.test/a", {}, ""),
    ],
)
def test_credentials_in_files(
    fake: FakeServer, tmp_path: Path, words: str, environ: dict[str, str], user: str
) -> None:
    def placed(text: str) -> str:
        return text.replace("FILE", logins(tmp_path)).replace("FOLDER", str(tmp_path))

    fake.prepare("PullImage", pulled())
    variables = {name: placed(value) for name, value in environ.items()}
    run = Run("-D", "-r", fake.endpoint, "pull", *placed(words).split(), environ=variables)
    assert run.code == 0
    (request,) = requests(fake)
    assert request.auth.username == user
    assert request.auth.password == {"me": "hush", "you": "x", "": ""}[user]
    assert "hush" not in run.stderr
    if user == "me":
        assert f"credentials for r.test/a: {tmp_path}/config.json" in run.stderr


def test_a_refusal_names_the_credentials(fake: FakeServer, tmp_path: Path) -> None:
    fake.prepare("PullImage", Status(grpc.StatusCode.UNKNOWN, "unexpected status: 401"))
    run = pull(fake, "--authfile", logins(tmp_path), "r.test/a")
    assert (run.code, run.stderr) == (
        1,
        'pycrictl: pulling "r.test/a": the registry refuses access to it with the credentials of'
        f" {tmp_path}/config.json\nhint: use other credentials: 'pycrictl pull --creds USER"
        " r.test/a', or --authfile FILE\n",
    )


def test_a_missing_file_of_credentials_is_an_error_before_a_pull(fake: FakeServer) -> None:
    run = pull(fake, "--authfile", "/no/such.json", "r.test/a")
    said = 'pycrictl: cannot read "/no/such.json": no such file or directory\n'
    assert (run.code, run.stderr, requests(fake)) == (1, said, [])
    both = pull(fake, "--authfile", "/no/such.json", "--no-credentials", "r.test/a")
    assert "--no-credentials cannot be combined" in both.stderr


def test_crictl_takes_no_credentials_of_the_environment(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/crictl"])
    fake.prepare("PullImage", pulled())
    file = logins(tmp_path)
    environ = {"REGISTRY_AUTH_FILE": file}
    assert Run("-r", fake.endpoint, "pull", "r.test/a", environ=environ).code == 0
    assert not requests(fake)[0].HasField("auth")
    fake.prepare("PullImage", pulled())
    assert Run("-r", fake.endpoint, "pull", "--authfile", file, "r.test/a").code == 0
    assert requests(fake)[1].auth.username == "me"


def test_an_answer_without_reference_is_an_error(fake: FakeServer) -> None:
    fake.prepare("PullImage", pulled(""))
    run = pull(fake, "a")
    assert run.code == 1
    assert run.stderr == 'pycrictl: the runtime pulled "a" but named no image\n'


SECRET_REFERENCE = "https://u:topsecret@reg.example/x:1"


@pytest.mark.parametrize(
    "words",
    [
        ["pull"],
        ["pull", "--progress", "plain"],
        ["pull", "--max-parallel-image-pulls", "1"],
        ["inspecti"],
        ["rmi"],
        ["ps", "--image"],
    ],
    ids=" ".join,
)
def test_a_password_in_a_reference_is_not_shown(
    fake: FakeServer, tmp_path: Path, words: list[str]
) -> None:
    refused = Status(grpc.StatusCode.UNKNOWN, f"no {SECRET_REFERENCE}")
    for call in ("ImageStatus", "PullImage", "ListImages"):
        fake.offer(call, refused)
    if words[0] == "pull":
        fake.offer("ImageStatus", None)
    fake.offer("ListContainers", None)
    environ = {"PYCRICTL_SLOTS_DIR": str(tmp_path / "slots")}
    run = Run("-D", "-r", fake.endpoint, *words, SECRET_REFERENCE, environ=environ)
    assert run.code == 1
    told = [line for line in run.stderr.splitlines() if line.startswith("pycrictl: ")]
    assert f'"https://{MASK}@reg.example/x:1"' in told[-1]
    # The log has the request and its failure; a pull is refused before.
    assert run.stderr.count(MASK) > (0 if words[0] == "pull" else 2)
    assert "topsecret" not in run.stderr
    sent = [call.request.image.image for call in fake.calls if call.method.endswith("Image")]
    assert set(sent) <= {SECRET_REFERENCE}


def meeting(fake: FakeServer, together: int) -> None:
    """Answer pulls only when ``together`` of them are waiting at once."""
    barrier = threading.Barrier(together)

    def answer(request: cri_pb2.PullImageRequest, _: object) -> cri_pb2.PullImageResponse:
        barrier.wait(20)
        return pulled(request.image.image)

    fake.prepare("PullImage", answer, repeat=True)


def test_several_images_at_once_under_a_limit(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    meeting(fake, 2)
    run = pull(fake, "--max-parallel-image-pulls", "2", "a", "b", "c", "d")
    assert (run.code, run.stderr) == (0, "")
    assert run.stdout == "".join(f"Image is up to date for {name}\n" for name in "abcd")


def test_a_list_of_images_and_a_table_at_the_end(fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("x/a:1\nx/b:2  # two\n")
    meeting(fake, 2)
    run = pull(fake, "--from", str(tmp_path / "list"), "--parallel", "2")
    assert (run.code, run.stderr) == (0, "")
    head, *rows = run.stdout.splitlines()
    assert head.split() == ["IMAGE", "RESULT", "TIME"]
    assert [row.split("   ")[:2] for row in rows] == [
        ["x/a:1", "up to date"],
        ["x/b:2", "up to date"],
    ]


def test_a_failure_in_a_list_does_not_stop_the_others(fake: FakeServer) -> None:
    missing = Status(grpc.StatusCode.NOT_FOUND, "manifest unknown")
    fake.prepare("PullImage", pulled("a"), missing, pulled("c"))
    run = Run("-r", fake.endpoint, "pull", "--from", "-", stdin="x/a\nx/b\nx/c\n")
    results = [re.split(r"\s{2,}", line)[1] for line in run.stdout.splitlines()[1:]]
    assert run.code == 1
    assert results == ["up to date", "failed: the registry does not have it", "up to date"]


# Slots shared by processes, without a proxy

ABSENT = cri_pb2.ImageStatusResponse()
PRESENT = cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id="sha256:11"))


def slots(tmp_path: Path) -> dict[str, str]:
    return {"PYCRICTL_SLOTS_DIR": str(tmp_path / "slots")}


def test_a_present_image_succeeds_at_once(fake: FakeServer, tmp_path: Path) -> None:
    fake.prepare("ImageStatus", PRESENT)
    words = ("--max-parallel-image-pulls", "1", "a/b:1")
    run = Run("-r", fake.endpoint, "pull", *words, environ=slots(tmp_path))
    assert (run.code, run.stdout) == (0, "Image is up to date for sha256:11\n")
    assert fake.methods() == ["ImageStatus"]
    assert not (tmp_path / "slots").exists()
