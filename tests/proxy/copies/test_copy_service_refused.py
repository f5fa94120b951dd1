"""What the proxy refuses to copy, before the stream and on it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy.rules.quotas import MAX_COPIES
from pycrictl.copy.transfer.messages import CHANNEL_END, STATUS, TO_CONTAINER
from pycrictl.errors import CopyError, FailedPrecondition, PycrictlError
from tests.copy.trees import needs_root, stages_in
from tests.node.kubelet import RUNTIME
from tests.proxy.copier import (
    MIB,
    Copier,
    Pretended,
    Start,
    finish,
    outcome_of,
    refusal,
    spools,
    stream,
)
from tests.waiting import wait_until

pytestmark = needs_root


def test_codes(copier: Copier, container: Pretended) -> None:
    """Beside those that the suite of tests/conformance asks for."""
    for ask in (copier.ask_to, copier.ask_from):
        for path in ("", "/to/\0"):
            assert refusal(ask, path)[0] == "INVALID_ARGUMENT"
        assert refusal(ask, "/to", container="")[0] == "INVALID_ARGUMENT"
    os.mkfifo(container.root / "pipe")
    assert refusal(copier.ask_from, "/pipe")[0] == "FAILED_PRECONDITION"
    container.runtime_type = "io.containerd.kata.v2"
    assert refusal(copier.ask_to, "")[0] == "UNIMPLEMENTED"
    assert refusal(copier.ask_from, "/to")[0] == "UNIMPLEMENTED"
    container.state = cri_pb2.CONTAINER_EXITED
    with pytest.raises(FailedPrecondition, match="is not running"):
        copier.into("/etc/hostname", "/to")
    for name in ("CopyToContainer", "CopyFromContainer"):
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = copier.proxy.channel.unary_unary(
            RUNTIME + name
        )
        assert refusal(call, b"\xff\xff", timeout=5)[0] == "INVALID_ARGUMENT"


def test_the_size_limit_is_exact(container: Pretended, start: Start, tmp_path: Path) -> None:
    (container.root / "to/exact").write_bytes(bytes(2048))
    (container.root / "to/more").write_bytes(bytes(2049))
    for name in ("exact", "more"):
        os.utime(container.root / "to" / name, (0, 0))  # else the time needs a header of its own
    size = 512 + 2048 + 1024
    copier = Copier(start("--container-copy-size-limit", str(size)))
    with copier.client:
        assert copier.ask_from("/to/exact").size == size
        code, message = refusal(copier.ask_from, "/to/more")
        assert code == "RESOURCE_EXHAUSTED"
        assert re.search("ContainerCopySizeLimit; .*try again later", message)
        stream(copier.ask_to(size=size)).close()
        for more in (size + 1, 2**64 - 1):
            assert refusal(copier.ask_to, size=more) == (code, message)
        # Only the one that nobody has opened.
        wait_until(lambda: [copy["direction"] for copy in copier.copies] == ["from"])
        assert len(spools(copier.proxy.pid)) == 1


def test_the_entry_limit_is_exact(container: Pretended, start: Start, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_text("")
    copier = Copier(start("--container-copy-entry-limit", "2"))
    with copier.client:
        copier.into(tmp_path / "d", "/to/two")
        (tmp_path / "d/b").write_text("")
        with pytest.raises(CopyError, match="container-copy-entry-limit allows no more than 2"):
            copier.into(tmp_path / "d", "/to/three")
    assert [path.name for path in (container.root / "to").iterdir()] == ["two"]


def test_copies_of_a_pod_are_exact(container: Pretended, start: Start) -> None:
    (container.root / "f").write_text("1")
    copier = Copier(start("--container-copies-per-pod", "2"))
    other = "d" * 64
    with copier.client:
        first = stream(copier.ask_to())
        copier.ask_from("/f")
        code, message = refusal(copier.ask_to)
        assert code == "RESOURCE_EXHAUSTED"
        assert re.search("ContainerCopiesPerPod; .*try again later", message)
        assert refusal(copier.ask_from, "/f")[0] == code
        # Asking whether a copy is possible takes none.
        assert refusal(copier.ask_to, "")[0] == "INVALID_ARGUMENT"
        copier.ask_to(container=other)
        assert [copy["pod"] for copy in copier.copies] == ["pod1", "pod1", "pod2"]
        first.abort()
        wait_until(lambda: len(copier.copies) == 2)
        copier.ask_to()
        assert refusal(copier.ask_to)[0] == code


def test_copies_of_all_pods_are_exact(container: Pretended, start: Start) -> None:
    """One stream of each of 64 pods carries all of its bytes; a 65th pod is refused."""
    pods = {f"{number:064x}": f"p{number}" for number in range(MAX_COPIES + 1)}
    container.pods |= pods
    copier = Copier(start())
    *first, one_more = pods
    with copier.client:
        streams = [copier.send_archive("/to", one) for one in first]
        assert len({copy["pod"] for copy in copier.copies}) == MAX_COPIES
        code, message = refusal(copier.ask_to, container=one_more)
        assert code == "RESOURCE_EXHAUSTED"
        assert message.startswith("pycrictl proxy: 64 copies are under way, 0 of them of pod")
        assert {finish(one).failure for one in streams} == {""}
        for one in streams:
            one.close()
        wait_until(lambda: copier.copies == [])
        stream(copier.ask_to(container=one_more)).abort()


@pytest.mark.parametrize(
    ("data", "size", "why"),
    [
        (bytes(17 * MIB), 2**64 - 1, "follows the end of the archive"),
        (b"x" * 1024, 1024, "not a tar archive"),
        (b"", 0, "too early"),
    ],
)
def test_a_bad_stream_changes_nothing(
    copier: Copier, container: Pretended, data: bytes, size: int, why: str
) -> None:
    (container.root / "to/f").write_text("old")
    connection = stream(copier.ask_to("/to/f", size, 0))
    for at in range(0, len(data), MIB):
        connection.send(TO_CONTAINER, data[at : at + MIB])
        if connection.can_receive():  # it says why it takes no more
            break
    else:
        connection.send(CHANNEL_END, bytes((TO_CONTAINER,)))
    assert why in outcome_of(connection).failure
    connection.close()
    copier.wait_until_idle()
    assert (container.root / "to/f").read_text() == "old"
    assert stages_in(container.root) == []
    wait_until(lambda: copier.proxy.log().count("end=failed") == 1)


def test_other_channels_are_not_the_clients(copier: Copier, container: Pretended) -> None:
    for channel in (1, STATUS, 77, CHANNEL_END):
        connection = stream(copier.ask_to("/to/f"))
        connection.send(channel, b"x")
        assert "channel that is not its own" in outcome_of(connection).failure
        connection.close()


def test_a_url_works_once_and_only_as_a_websocket(copier: Copier, container: Pretended) -> None:
    (container.root / "f").write_text("1")
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    upgrade.append("Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==")
    protocol = "Sec-WebSocket-Protocol: v5.channel.k8s.io"
    for fields, early in (
        ([], b""),
        (upgrade, b""),
        ([*upgrade, protocol.replace("v5", "v4")], b""),
        ([*upgrade, protocol], b"\x88\x80abcd"),  # before the handshake is over
    ):
        url = copier.ask_from("/f").url
        address, _, path = url.removeprefix("http://").partition("/")
        head = "\r\n".join([f"GET /{path} HTTP/1.1", f"Host: {address}", *fields, "", ""])
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5) as sock:
            sock.sendall(head.encode() + early)
            assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
        for used in (url, url.replace("/copy/", "/progress/")):
            with pytest.raises(PycrictlError, match="404"):
                stream(used)


def test_a_slot_is_free_as_soon_as_the_outcome_is_known(
    container: Pretended, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1")
    copier = Copier(start("--container-copies-per-pod", "1"))
    with copier.client:
        for number in range(20):
            connection = copier.send_archive(f"/to/{number}")
            assert finish(connection).failure == ""
            reading = stream(copier.ask_from(f"/to/{number}").url)
            connection.abort()
            assert outcome_of(reading).failure == ""
            copier.into(tmp_path / "f", "/to")
            reading.abort()
        copier.wait_until_idle()
