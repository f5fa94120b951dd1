"""CopyToContainer and CopyFromContainer: the calls, their URLs, and the streams behind them."""

from __future__ import annotations

import itertools
import socket
import tarfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.e2e.node.images import File, busybox
from tests.e2e.node.kubelet import Pod

from .archives import HOSTILE, content, entry, listing, tar
from .endpoint import HELLO, Endpoint, Refused
from .rules import COPY, OPEN, not_implemented, rule
from .streams import CHANNELS, PIECE_BYTES, Copied, download, opened, pieces, status_of, upload

REQUEST = "KEP-4582, CopyToContainerRequest, CopyFromContainerRequest"
RESPONSE = "KEP-4582, CopyFromContainerResponse"
RUNNING = "KEP-4582, CRI implementation"
QUOTAS = "KEP-4582, kubelet"
DOCKER = f"{OPEN}, as docker cp"
CODES = grpc.StatusCode


class Box:
    """A container to copy from and to."""

    def __init__(self, endpoint: Endpoint, id: str) -> None:
        self.endpoint = endpoint
        self.id = id

    def put(self, data: bytes, path: str, *, size: int = -1, checksum: int = -1) -> Copied:
        size = len(data) if size < 0 else size
        checksum = zlib.crc32(data) if checksum < 0 else checksum
        return upload(self.endpoint.copy_to_url(self.id, path, size, checksum), data)

    def get(self, path: str) -> bytes:
        """Return the archive of a path; the copy must succeed."""
        answer = self.endpoint.copy_from(self.id, path)
        copied = download(answer.url)
        assert copied.is_success, copied.outcome
        return copied.data

    def names(self, path: str) -> set[str]:
        return set(listing(self.get(f"{path}/."))) - {"."}


@pytest.fixture(scope="module")
def pod(endpoint: Endpoint) -> Pod:
    return endpoint.pod("copies")


@pytest.fixture(scope="module")
def box(endpoint: Endpoint, pod: Pod) -> Box:
    made = Box(endpoint, endpoint.container(pod, endpoint.shell))
    made.get("/srv/hello")
    return made


_NUMBERS = itertools.count()


@pytest.fixture
def place(box: Box) -> str:
    name = f"place{next(_NUMBERS)}"
    assert box.put(tar(entry(name, tarfile.DIRTYPE, mode=0o755)), "/tmp").is_success
    return f"/tmp/{name}"


def code(act: Callable[..., object], *words: Any) -> grpc.StatusCode:
    """Return the code with which a call is refused."""
    with pytest.raises(Refused) as caught:
        act(*words)
    return caught.value.code


def codes(endpoint: Endpoint, container: str, path: str) -> set[grpc.StatusCode]:
    """Return the codes with which copies in both directions are refused."""
    into = code(endpoint.copy_to_url, container, path, 1, 1)
    return {code(endpoint.copy_from, container, path), into}


def unchanged(box: Box, place: str, copied: Copied) -> None:
    assert copied.is_failure, copied
    assert box.names(place) == set()


# The calls


@rule("C1", "An unknown container fails with NOT_FOUND, both ways.", f"{RUNNING}; the code: {OPEN}")
def test_an_unknown_container(endpoint: Endpoint, box: Box) -> None:
    assert codes(endpoint, uuid.uuid4().hex * 2, "/srv") == {CODES.NOT_FOUND}


@rule("C2", "A path that is not absolute fails with INVALID_ARGUMENT.", REQUEST)
def test_a_relative_path(endpoint: Endpoint, box: Box) -> None:
    for path in ("srv", "./srv", ""):
        assert codes(endpoint, box.id, path) == {CODES.INVALID_ARGUMENT}


@rule("C3", "A path with an element `..` fails with INVALID_ARGUMENT.")
def test_a_path_that_leads_up(endpoint: Endpoint, box: Box) -> None:
    for path in ("/srv/../etc", "/srv/.."):
        assert codes(endpoint, box.id, path) == {CODES.INVALID_ARGUMENT}


@rule("C4", "A container that was never started fails with FAILED_PRECONDITION.", RUNNING)
def test_a_created_container(endpoint: Endpoint, pod: Pod, box: Box) -> None:
    made = endpoint.container(pod, endpoint.shell, name="c4", starts=False)
    assert codes(endpoint, made, "/srv") == {CODES.FAILED_PRECONDITION}


@rule("C5", "A container that has ended fails with FAILED_PRECONDITION.", RUNNING)
def test_an_ended_container(endpoint: Endpoint, pod: Pod, box: Box) -> None:
    made = endpoint.container(pod, endpoint.shell, name="c5")
    endpoint.stop(made)
    assert codes(endpoint, made, "/srv") == {CODES.FAILED_PRECONDITION}


@rule("C6", "What is not there cannot be copied out: NOT_FOUND.")
def test_a_missing_source(endpoint: Endpoint, box: Box) -> None:
    assert code(endpoint.copy_from, box.id, "/srv/nothing") is CODES.NOT_FOUND


@rule("C7", "A URL is good for one connection; a second one, and a made up one, get 404.")
def test_urls(endpoint: Endpoint, box: Box) -> None:
    url = endpoint.copy_from(box.id, "/srv/hello").url
    assert download(url).is_success
    assert status_of(url) == 404
    assert status_of(url[:-4] + "AAAA") == 404


# Out of a container


@rule("C8", "Size and CRC-32 of the answer are those of the bytes that come.", RESPONSE)
def test_size_and_checksum(endpoint: Endpoint, box: Box) -> None:
    answer = endpoint.copy_from(box.id, "/srv")
    copied = download(answer.url)
    assert (len(copied.data), zlib.crc32(copied.data)) == (answer.size, answer.checksum)


@rule("C9", "The stream has channels (v5), its Status on channel 3, and is closed with 1000.")
def test_the_stream(endpoint: Endpoint, box: Box) -> None:
    copied = download(endpoint.copy_from(box.id, "/srv/hello").url)
    assert (copied.subprotocol, copied.code) == (CHANNELS, 1000)
    assert copied.is_success


@rule("C10", "A file comes out as an archive of that file, content and mode as they are.", COPY)
def test_a_file(box: Box) -> None:
    data = box.get("/srv/hello")
    assert set(listing(data)) == {"hello"}
    assert content(data, "hello") == HELLO
    assert listing(data)["hello"].mode == 0o640


@rule("C11", "A directory comes out under its name; `DIR/.` is what it holds.", DOCKER)
def test_a_directory(box: Box) -> None:
    assert set(listing(box.get("/srv"))) == {
        *("srv", "srv/hello", "srv/inner", "srv/inner/deep", "srv/link")
    }
    assert box.names("/srv") == {"hello", "inner", "inner/deep", "link"}


@rule("C12", "A symbolic link comes out as the link that it is.", DOCKER)
def test_a_link(box: Box) -> None:
    member = listing(box.get("/srv"))["srv/link"]
    assert (member.type, member.linkname) == (tarfile.SYMTYPE, "hello")


@rule("C13", "It works where the container has no program but its own.", "KEP-4582, Motivation")
def test_without_a_shell(endpoint: Endpoint, pod: Pod, box: Box) -> None:
    folders = [File(name, mode=0o755, is_folder=True) for name in ("bin", "data")]
    layer = endpoint.layout.layer([*folders, busybox("bin/sleep")])
    bare = endpoint.publish("bare", [layer])
    endpoint.pull(bare)
    alone = Box(endpoint, endpoint.container(pod, bare, name="bare"))
    assert alone.put(tar(("f", b"1")), "/data").is_success
    assert content(alone.get("/data/f"), "f") == b"1"


# Into a container


@rule("C14", "Into a directory goes what the archive holds, each entry under its name.", DOCKER)
def test_into_a_directory(box: Box, place: str) -> None:
    assert box.put(tar(("one", b"1"), ("two", b"22")), place).is_success
    assert box.names(place) == {"one", "two"}
    assert content(box.get(f"{place}/two"), "two") == b"22"


@rule("C15", "To a name that is not there goes the one file of the archive, by that name.", DOCKER)
def test_to_a_new_name(box: Box, place: str) -> None:
    assert box.put(tar(("one", b"1")), f"{place}/other").is_success
    assert box.names(place) == {"other"}


@rule("C16", "Over a file goes a file.", DOCKER)
def test_over_a_file(box: Box, place: str) -> None:
    for data in (b"before", b"after"):
        assert box.put(tar(("f", data)), f"{place}/f").is_success
    assert content(box.get(f"{place}/f"), "f") == b"after"


@rule("C17", "A missing parent is an error.", DOCKER)
def test_a_missing_parent(box: Box, place: str) -> None:
    unchanged(box, place, box.put(tar(("f", b"1")), f"{place}/no/such"))


@rule("C18", "A directory over a file, and a file over a directory, are errors.", DOCKER)
def test_kinds_that_do_not_fit(box: Box, place: str) -> None:
    assert box.put(tar(("f", b"1"), entry("d", tarfile.DIRTYPE)), place).is_success
    assert box.put(tar(entry("f", tarfile.DIRTYPE, mode=0o755)), place).is_failure
    assert box.put(tar(("d", b"1")), place).is_failure
    assert content(box.get(f"{place}/f"), "f") == b"1"


@rule("C19", "Modes of files are kept.", COPY)
def test_modes(box: Box, place: str) -> None:
    modes = {"private": 0o600, "program": 0o755}
    made = [entry(name, mode=mode) for name, mode in modes.items()]
    assert box.put(tar(*made), place).is_success
    members = listing(box.get(f"{place}/."))
    assert {name: members[name].mode for name in modes} == modes


@rule("C20", "Symbolic and hard links of an archive are made as such.", DOCKER)
def test_links(box: Box, place: str) -> None:
    data = tar(
        ("file", b"1"),
        entry("hard", tarfile.LNKTYPE, to="file"),
        entry("soft", tarfile.SYMTYPE, to="file"),
    )
    assert box.put(data, place).is_success
    members = listing(box.get(f"{place}/."))
    assert (members["soft"].type, members["soft"].linkname) == (tarfile.SYMTYPE, "file")
    assert content(box.get(f"{place}/hard"), "hard") == b"1"
    assert tarfile.LNKTYPE in (members["hard"].type, members["file"].type)


@rule("C21", "A path below a mounted volume is that of the volume.", COPY)
def test_volumes(endpoint: Endpoint, pod: Pod, box: Box, tmp_path: Path) -> None:
    mount = cri_pb2.Mount(container_path="/volume", host_path=str(tmp_path))
    made = Box(endpoint, endpoint.container(pod, endpoint.shell, name="c21", mounts=[mount]))
    assert made.put(tar(("f", b"volume")), "/volume").is_success
    if not list(tmp_path.iterdir()):
        not_implemented("volumes of this machine: the runtime is elsewhere")
    assert (tmp_path / "f").read_bytes() == b"volume"
    (tmp_path / "g").write_bytes(b"back")
    assert content(made.get("/volume/g"), "g") == b"back"


@rule(
    "C22", "In a user namespace, files belong to the users of the container.", "KEP-4582, Proposal"
)
def test_user_namespaces(endpoint: Endpoint) -> None:
    made = _in_user_namespace(endpoint)
    if int(endpoint.kubelet.run(made.id, "cat", "/proc/self/uid_map").split()[1]) == 0:
        pytest.skip("the runtime makes no user namespaces")
    owned = entry("f")
    owned.uid = owned.gid = 7
    assert made.put(tar(owned), "/tmp").is_success
    assert endpoint.kubelet.run(made.id, "stat", "-c", "%u %g", "/tmp/f").split() == ["7", "7"]
    member = listing(made.get("/tmp/f"))["f"]
    assert (member.uid, member.gid) == (7, 7)


def _in_user_namespace(endpoint: Endpoint) -> Box:
    """Make a container in a user namespace, in the host's network if one of its own fails."""
    mapping = cri_pb2.IDMapping(host_id=100_000, container_id=0, length=65_536)
    for network in (cri_pb2.POD, cri_pb2.NODE):
        config = endpoint.kubelet.pod_config(f"userns-{network}", namespace=endpoint.namespace)
        options = config.linux.security_context.namespace_options
        options.network = network
        options.userns_options.CopyFrom(
            cri_pb2.UserNamespace(mode=cri_pb2.POD, uids=[mapping], gids=[mapping])
        )
        with suppress(grpc.RpcError):
            return Box(endpoint, endpoint.container(endpoint.run_pod(config), endpoint.shell))
    pytest.skip("the runtime makes no pods with user namespaces")


# Archives are checked before anything is visible


@rule("C23", "An archive shorter than announced changes nothing.", REQUEST)
def test_a_short_archive(box: Box, place: str) -> None:
    data = tar(("f", b"x" * 100_000))
    unchanged(box, place, box.put(data[:-10_240], place, size=len(data), checksum=zlib.crc32(data)))


@rule("C24", "An archive longer than announced changes nothing.", REQUEST)
def test_a_long_archive(box: Box, place: str) -> None:
    data = tar(("f", b"x"))
    unchanged(box, place, box.put(data + bytes(1024), place, size=len(data)))


@rule("C25", "An archive with another checksum changes nothing.", REQUEST)
def test_a_wrong_checksum(box: Box, place: str) -> None:
    data = tar(("f", b"x"))
    unchanged(box, place, box.put(data, place, checksum=zlib.crc32(data) ^ 1))


@rule("C26", "Nothing shows before the archive has come whole.")
def test_nothing_shows_early(endpoint: Endpoint, box: Box, place: str) -> None:
    data = tar(("first", b"1"), ("second", b"x" * 200_000))
    url = endpoint.copy_to_url(box.id, place, len(data), zlib.crc32(data))
    with opened(url, subprotocol=CHANNELS) as connection:
        for piece in list(pieces(data))[:3]:
            connection.send(piece)
        time.sleep(0.3)  # not scaled by the pace: files shown too early are visible by then
        assert box.names(place) == set()


@rule("C27", "A connection that breaks changes nothing, and leaves nothing.")
def test_a_broken_connection(endpoint: Endpoint, box: Box, place: str) -> None:
    data = tar(("f", b"x" * 8 * PIECE_BYTES))
    url = endpoint.copy_to_url(box.id, place, len(data), zlib.crc32(data))
    with opened(url, subprotocol=CHANNELS) as connection:
        for piece in list(pieces(data))[:4]:
            connection.send(piece)
        connection.socket.shutdown(socket.SHUT_RDWR)
    endpoint.pause(0.3)
    assert box.names(place) == set()
    assert box.put(data, place).is_success
    assert box.names(place) == {"f"}


@rule("C28", "A container that ends in between: the copy fails, or its connection ends.")
def test_a_container_that_ends(endpoint: Endpoint, pod: Pod, box: Box) -> None:
    made = Box(endpoint, endpoint.container(pod, endpoint.shell, name="c28"))
    data = tar(("f", b"x" * 8 * PIECE_BYTES))
    url = endpoint.copy_to_url(made.id, "/tmp", len(data), zlib.crc32(data))
    endpoint.stop(made.id)
    assert not upload(url, data).is_success


@rule("C29", "A hostile archive is refused as a whole; nothing of it shows.")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives(box: Box, place: str, kind: str) -> None:
    before = box.names("/tmp")
    assert box.put(HOSTILE[kind](), place).is_failure
    assert box.names(place) == set()
    assert box.names("/tmp") == before


@rule("C30", "Devices of an archive are not made.")
def test_devices(box: Box, place: str) -> None:
    box.put(tar(entry("null", tarfile.CHRTYPE), ("f", b"1")), place)
    assert box.names(place) <= {"f"}


# Quotas


@pytest.fixture
def busy(endpoint: Endpoint, pod: Pod, box: Box) -> Iterator[int]:
    """Keep as many copies of the pod open as are allowed; none of them ends by itself."""
    if not endpoint.settings.copies_per_pod:
        not_implemented("COPIES_PER_POD is not named")
    with ExitStack() as stack:
        for _ in range(endpoint.settings.copies_per_pod):
            url = endpoint.copy_to_url(box.id, "/tmp", 100_000, 1)
            stack.callback(opened(url, subprotocol=CHANNELS).close)
        yield endpoint.settings.copies_per_pod
    endpoint.pause(0.3)


@rule("C31", "One copy more than a pod may have fails with RESOURCE_EXHAUSTED: try again.", QUOTAS)
def test_copies_of_a_pod(endpoint: Endpoint, box: Box, busy: int) -> None:
    with pytest.raises(Refused) as caught:
        endpoint.copy_to_url(box.id, "/tmp", 1024, 1)
    assert caught.value.code is CODES.RESOURCE_EXHAUSTED
    assert "try again" in caught.value.message


@rule("C32", "The copies of other pods are not counted.", QUOTAS)
def test_copies_of_other_pods(endpoint: Endpoint, busy: int) -> None:
    made = Box(endpoint, endpoint.container(endpoint.pod("other-copies"), endpoint.shell))
    assert content(made.get("/srv/hello"), "hello") == HELLO


@rule("C33", "A copy above the size limit fails with RESOURCE_EXHAUSTED, both ways.", QUOTAS)
def test_the_size_limit(endpoint: Endpoint, box: Box, place: str) -> None:
    limit = endpoint.settings.copy_size_limit
    if not limit:
        not_implemented("COPY_SIZE_LIMIT is not named")
    assert code(endpoint.copy_to_url, box.id, place, limit + 1, 1) is CODES.RESOURCE_EXHAUSTED
    for name in ("one", "two"):
        assert box.put(tar((name, bytes(limit // 2))), place).is_success
    assert code(endpoint.copy_from, box.id, place) is CODES.RESOURCE_EXHAUSTED
