"""ImagePullProgress: the call, its URL, and the stream behind it."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from tests.e2e.node.images import Image
from tests.e2e.node.kubelet import Pod
from tests.waiting import settled, wait_until

from .endpoint import MIB, Endpoint, Refused, name_of
from .rules import OPEN, not_implemented, rule
from .streams import Recording, Watcher, status_of

END_S = 15.0
"""How soon a stream must end once nothing is being pulled."""

SLOW = 2 * MIB
LAYERS = (MIB, MIB, MIB // 2)
REQUEST = "KEP-5334, ImagePullProgressRequest"
RESPONSE = "KEP-5334, ImagePullProgressResponse"
FORMAT = "KEP-5334, Data format"
NUMBERS = ("progress", "total")
TEXTS = ("image", "layer", "error")


@dataclass
class Watched:
    """One slow pull and the recordings of its watchers."""

    reference: str
    image: Image
    began: float
    pull_ended: float
    pulled: bool
    upgraded: list[Recording]
    plain: Recording
    late: Recording
    left: Recording

    @property
    def all(self) -> list[Recording]:
        return [*self.upgraded, self.plain, self.late]

    @property
    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages of all watchers, without those that are not objects."""
        return (message for recording in self.all for message in recording.messages if message)


@pytest.fixture(scope="module")
def pod(endpoint: Endpoint) -> Pod:
    return endpoint.pod("idle")


@pytest.fixture(scope="module")
def watched(endpoint: Endpoint) -> Watched:
    """A pull that had begun before five clients watched it."""
    pod = endpoint.pod("watched")
    endpoint.progress_url(pod=pod.id)
    reference, image = endpoint.published("watched", [endpoint.base, *endpoint.layers(*LAYERS)])
    endpoint.slow(SLOW)
    sent = endpoint.registry.sent_bytes
    pull = endpoint.kubelet.start_pull(reference, pod)
    ended: list[float] = []
    pull.add_done_callback(lambda _: ended.append(time.monotonic()))
    wait_until(lambda: endpoint.registry.sent_bytes - sent > MIB // 2)
    endpoint.hold()
    is_over = threading.Event()

    def watch(*, is_plain: bool = False, leaves_after: int = 0, is_late: bool = False) -> Watcher:
        url = endpoint.progress_url(pod=pod.id)
        reads = is_over if is_late else None
        return Watcher(url, is_plain=is_plain, leaves_after=leaves_after, reads=reads)

    began = time.monotonic()
    upgraded = [watch(), watch()]
    plain, late, left = watch(is_plain=True), watch(is_late=True), watch(leaves_after=2)
    endpoint.slow(SLOW)
    wait_until(pull.done)
    is_over.set()
    wait_until(lambda: bool(ended))
    endpoint.registry.limit(None)
    return Watched(
        reference,
        image,
        began,
        ended[0],
        pull.exception() is None,
        [stream.end() for stream in upgraded],
        plain.end(),
        late.end(),
        left.end(),
    )


def refused(endpoint: Endpoint, *, pod: str = "", container: str = "") -> grpc.StatusCode:
    with pytest.raises(Refused) as caught:
        endpoint.progress_url(pod=pod, container=container)
    return caught.value.code


# The call


@rule("P1", "A pod sandbox ID alone gets a URL.", REQUEST)
def test_a_pod(endpoint: Endpoint, pod: Pod) -> None:
    assert endpoint.progress_url(pod=pod.id)


@rule("P2", "A container ID alone gets a URL.", REQUEST)
def test_a_container(endpoint: Endpoint, pod: Pod) -> None:
    assert endpoint.progress_url(container=endpoint.container(pod, endpoint.shell, name="p2"))


@rule("P3", "Without an ID the call fails with INVALID_ARGUMENT.", f"{REQUEST}; the code: {OPEN}")
def test_no_id(endpoint: Endpoint, pod: Pod) -> None:
    endpoint.progress_url(pod=pod.id)
    assert refused(endpoint) is grpc.StatusCode.INVALID_ARGUMENT


@rule("P4", "An unknown pod sandbox ID fails with NOT_FOUND.")
def test_an_unknown_pod(endpoint: Endpoint) -> None:
    assert refused(endpoint, pod=uuid.uuid4().hex * 2) is grpc.StatusCode.NOT_FOUND


@rule("P5", "An unknown container ID fails with NOT_FOUND.")
def test_an_unknown_container(endpoint: Endpoint) -> None:
    assert refused(endpoint, container=uuid.uuid4().hex * 2) is grpc.StatusCode.NOT_FOUND


@rule("P6", "A container with the ID of another pod fails with NOT_FOUND.")
def test_a_container_of_another_pod(endpoint: Endpoint, pod: Pod) -> None:
    endpoint.progress_url(pod=pod.id)
    stranger = endpoint.container(endpoint.pod("other"), endpoint.shell)
    assert refused(endpoint, pod=pod.id, container=stranger) is grpc.StatusCode.NOT_FOUND


# The URL


@rule("P7", "The URL is absolute, of http, https, ws or wss, with a host.", RESPONSE)
def test_the_form_of_the_url(endpoint: Endpoint, pod: Pod) -> None:
    parts = urlsplit(endpoint.progress_url(pod=pod.id))
    assert parts.scheme in ("http", "https", "ws", "wss")
    assert parts.hostname


@rule("P8", "Each call gets a URL of its own, with at least 128 random bits.")
def test_each_url_is_another(endpoint: Endpoint, pod: Pod) -> None:
    urls = [endpoint.progress_url(pod=pod.id) for _ in range(4)]
    assert len(set(urls)) == 4
    words = [set(re.findall(r"[A-Za-z0-9_-]+", urlsplit(url).path)) for url in urls]
    own = [
        words_of_one - set.union(*(words[:n] + words[n + 1 :]))
        for n, words_of_one in enumerate(words)
    ]
    assert all(sum(map(len, unique)) >= 22 for unique in own)  # 6 bits a character


@rule("P9", "A URL is good for one connection: a second one gets 404.")
def test_a_url_is_good_once(endpoint: Endpoint, pod: Pod) -> None:
    url = endpoint.progress_url(pod=pod.id)
    assert status_of(url) == 101
    assert status_of(url) == 404


@rule("P10", "A URL that was made up gets 404.")
def test_a_made_up_url(endpoint: Endpoint, pod: Pod) -> None:
    url = endpoint.progress_url(pod=pod.id)
    token = re.findall(r"[A-Za-z0-9_-]+", urlsplit(url).path)[-1]
    assert status_of(url.replace(token, token.swapcase())) == 404


@rule("P11", "A URL that nobody opens is not good any more after a minute.")
def test_a_url_expires(endpoint: Endpoint, pod: Pod) -> None:
    url = endpoint.progress_url(pod=pod.id)
    if not endpoint.settings.url_s:
        pytest.skip("this takes a minute: URL_S=60 asks for it")
    time.sleep(endpoint.settings.url_s + 1)
    assert status_of(url) == 404


# The stream


@rule("P12", "By WebSocket each message is text, one JSON object.", f"{FORMAT}; the form: {OPEN}")
def test_messages(watched: Watched) -> None:
    for recording in watched.upgraded:
        assert recording.kinds == {"text"}
        assert all(recording.messages)


@rule("P13", "Without an upgrade the answer is 200, with one JSON object a line.")
def test_lines(watched: Watched) -> None:
    assert not watched.plain.error
    assert "json" in watched.plain.content_type
    assert watched.plain.messages
    assert all(watched.plain.messages)


@rule("P14", "`progress` and `total` are always there, as integers; other fields are text.", FORMAT)
def test_fields(watched: Watched) -> None:
    for message in watched.messages:
        assert all(type(message.get(name)) is int for name in NUMBERS), message
        assert all(isinstance(message.get(name, ""), str) for name in TEXTS), message


@rule("P15", "`image` is the reference as the pod has it.", FORMAT)
def test_images(watched: Watched) -> None:
    assert {message.get("image") or watched.reference for message in watched.messages} <= {
        watched.reference
    }


@rule("P16", "`layer` is the digest of a layer of that image.", FORMAT)
def test_layers(watched: Watched) -> None:
    digests = {layer.digest for layer in watched.image.layers}
    assert {message["layer"] for message in watched.messages if message.get("layer")} <= digests


@rule("P17", "`progress` is never below 0, and never above a known `total`.", FORMAT)
def test_progress_and_total(watched: Watched) -> None:
    for message in watched.messages:
        assert message["progress"] >= 0, message
        assert message["total"] <= 0 or message["progress"] <= message["total"], message


@rule("P18", "In a pull that nothing disturbs, `progress` of an item never falls.")
def test_progress_never_falls(watched: Watched) -> None:
    for recording in watched.all:
        furthest: dict[tuple[str, str], int] = {}
        for message in filter(None, recording.messages):
            key = message.get("image", ""), message.get("layer", "")
            assert message["progress"] >= furthest.get(key, 0), message
            furthest[key] = message["progress"]


@rule("P19", "At the end the totals are the bytes that the manifest names.")
def test_totals(watched: Watched) -> None:
    sizes = {layer.digest: layer.size_bytes for layer in watched.image.layers}
    for recording in watched.all:
        layers = {layer: message for (_, layer), message in recording.last.items() if layer}
        if layers:
            assert {layer: message["total"] for layer, message in layers.items()} == {
                layer: sizes.get(layer) for layer in layers
            }
        else:
            assert [message["total"] for message in recording.last.values()] == [
                sum(sizes.values())
            ]


@rule("P20", "The stream ends, by close 1000 or the end of the body, when the pull has.")
def test_the_end(watched: Watched) -> None:
    for recording in watched.all:
        assert not recording.error
        assert recording.code == 1000
        assert watched.pull_ended - 0.5 <= recording.ended_at <= watched.pull_ended + END_S


@rule("P21", "The last message of each item of a pull that succeeded is whole, without error.")
def test_the_last_word(watched: Watched) -> None:
    assert watched.pulled
    for recording in watched.all:
        assert recording.last
        for message in recording.last.values():
            assert message["progress"] == message["total"] > 0, message
            assert not message.get("error"), message


@rule("P22", "Several clients may watch one pull, and see the same in the end.")
def test_several_watchers(watched: Watched) -> None:
    def numbers(recording: Recording) -> dict[tuple[str, str], tuple[int, int]]:
        return {
            key: (message["progress"], message["total"]) for key, message in recording.last.items()
        }

    first, other = watched.upgraded
    assert numbers(first) == numbers(other) == numbers(watched.plain)
    assert min(len(recording.texts) for recording in watched.upgraded) > 4


@rule("P23", "A watcher that leaves does not stop the pull.", "KEP-5334, Proposal")
def test_a_watcher_that_leaves(watched: Watched) -> None:
    assert len(watched.left.texts) == 2
    assert watched.left.ended_at < watched.pull_ended
    assert watched.pulled


@rule("P24", "A client that does not read holds up nobody, and has the end when it reads.")
def test_a_slow_reader(watched: Watched) -> None:
    first_at = [recording.texts[-1][0] for recording in watched.upgraded]
    assert max(first_at) < watched.pull_ended + END_S
    assert all(message["progress"] == message["total"] for message in watched.late.last.values())
    assert watched.late.last.keys() == watched.upgraded[0].last.keys()


@rule("P25", "A pull that began before the watch is shown with what it has by then.")
def test_a_pull_that_had_begun(watched: Watched) -> None:
    for recording in watched.upgraded:
        early = [
            message
            for (at, _), message in zip(recording.texts, recording.messages, strict=True)
            if at < watched.began + 3
        ]
        assert sum(message.get("progress", 0) for message in early) > 0


# One stream, and pulls of various kinds


def begun(endpoint: Endpoint, name: str) -> Pod:
    """Make a pod; skip the test if its pulls cannot be watched."""
    pod = endpoint.pod(name)
    endpoint.progress_url(pod=pod.id)
    return pod


def ended(watcher: Watcher) -> Recording:
    recording = watcher.end()
    assert recording.code == 1000, recording.error
    return recording


def seen(
    endpoint: Endpoint,
    pulled: list[tuple[str, Pod]],
    *streams: dict[str, str],
    until: Collection[str] = (),
) -> list[Any]:
    """Pull images while streams are open; return the images that each stream reports.

    No pull ends before those of ``until`` are reported, or ten seconds have passed.
    """
    endpoint.hold()
    pulls = [endpoint.kubelet.start_pull(*images) for images in pulled]
    watchers = [Watcher(endpoint.progress_url(**stream)) for stream in streams]
    told = [watcher.recording for watcher in watchers]
    settled(
        lambda: {
            message.get("image") for recording in told for message in recording.messages
        }.issuperset(until),
        limit_s=10,
    )
    endpoint.slow(4 * MIB)
    recordings = [ended(watcher) for watcher in watchers]
    endpoint.registry.limit(None)
    assert [pull.exception() for pull in pulls] == [None] * len(pulls)
    return [{message.get("image") for message in recording.messages} for recording in recordings]


@rule("P26", "For an image that is present no download is shown.")
def test_a_present_image(endpoint: Endpoint) -> None:
    pod = begun(endpoint, "present")
    reference = endpoint.shell
    watcher = Watcher(endpoint.progress_url(pod=pod.id))
    endpoint.pull(reference, pod)
    for message in ended(watcher).messages:
        assert message["progress"] in (0, message["total"])
        assert not message.get("error")


@rule("P27", "Two containers may have one image: each one's stream is about that image.")
def test_two_containers_with_one_image(endpoint: Endpoint) -> None:
    pod = begun(endpoint, "twins")
    reference, other = (
        endpoint.publish(f"twins{n}", [endpoint.base, *endpoint.layers(MIB)]) for n in (1, 2)
    )
    endpoint.pull(reference, pod)
    twins = [endpoint.container(pod, reference, name=name) for name in ("one", "two")]
    streams = [{"container": twin} for twin in twins]
    for images in seen(endpoint, [(reference, pod), (other, pod)], *streams):
        assert images <= {reference}


@rule("P28", "A pod's stream has all its pulls, those for image volumes too.", REQUEST)
def test_image_volumes(endpoint: Endpoint) -> None:
    pod = begun(endpoint, "volumes")
    references = [endpoint.publish(f"volume{n}", endpoint.layers(MIB // 2)) for n in (1, 2)]
    pulled = [(reference, pod) for reference in references]
    assert seen(endpoint, pulled, {"pod": pod.id}, until=references) == [set(references)]


@rule("P29", "A pull that fails is shown with an `error`, and the stream ends.", FORMAT)
def test_a_failed_pull(endpoint: Endpoint) -> None:
    pod = begun(endpoint, "failing")
    reference = f"{endpoint.registry.host}/no-such-{endpoint.namespace}:1"
    watcher = Watcher(endpoint.progress_url(pod=pod.id))
    with pytest.raises(grpc.RpcError):
        endpoint.pull(reference, pod)
    messages = ended(watcher).messages
    assert any(message.get("error") and message.get("image") == reference for message in messages)


@rule("P30", "The pulls of another pod are not shown.", REQUEST)
def test_pulls_of_others(endpoint: Endpoint) -> None:
    mine, other = begun(endpoint, "mine"), endpoint.pod("others")
    references = [endpoint.publish(f"own{n}", endpoint.layers(MIB)) for n in (1, 2)]
    pulled = list(zip(references, (mine, other), strict=True))
    assert seen(endpoint, pulled, {"pod": mine.id}) == [{references[0]}]


@rule("P31", "The stream of a pod that pulls nothing ends by itself, without an error.")
def test_nothing_to_pull(endpoint: Endpoint) -> None:
    recording = Watcher(endpoint.progress_url(pod=endpoint.pod("nothing").id)).end(END_S)
    assert recording.code == 1000, recording.error
    assert not any(message.get("error") for message in recording.messages)
    assert not recording.error


@rule("P32", "A pull that its client gives up ends the stream, with an `error`.")
def test_a_pull_given_up(endpoint: Endpoint) -> None:
    pod = begun(endpoint, "given-up")
    reference = endpoint.publish("given-up", endpoint.layers(2 * MIB))
    endpoint.registry.stall(f"{name_of(reference)}/blobs", after_bytes=MIB)
    sent = endpoint.registry.sent_bytes
    pull = endpoint.kubelet.start_pull(reference, pod)
    wait_until(lambda: endpoint.registry.sent_bytes > sent + MIB // 2)
    watcher = Watcher(endpoint.progress_url(pod=pod.id))
    endpoint.pause(0.5)
    pull.cancel()
    messages = ended(watcher).messages
    endpoint.registry.heal()
    if not messages:
        not_implemented("pulls that have begun")
    assert any(message.get("error") for message in messages)
