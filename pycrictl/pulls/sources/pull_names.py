"""Names for pulls on containerd, which shows a pull's reference only at its end. Pure.

A name is the first available of these: the reference that the caller announced; the name shown
before for the same manifest; the name used by the pods that wait for it; an image that the node
already has under the same digest; the repository in containerd's labels, with a short digest; the
short digest alone.

For a running pull, containerd shows its repository, without the registry's port and the tag, and
the digest of its manifest. A pod names a repository and a tag. So a pull's *candidates*
are the images of its repository that pods wait for, except those that other running pulls are for,
those of pods created after the pull began, and those whose pull the kubelet has since reported as
failed. If there are several, an image that the node has under the same digest decides, or the
registry; otherwise the pull may be for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pycrictl.kube.pods import Pod, PodImage
from pycrictl.pulls.reference import canonical, parse, repository, short_digest
from pycrictl.pulls.registries.credentials import Credentials
from pycrictl.pulls.sources.failures import REASONS
from pycrictl.runtime.containerd.store import is_digest

_REMEMBERED: Final = 1024


@dataclass(slots=True, eq=False)
class Expected:
    """A pull that the caller has requested and expects to appear.

    ``since_s`` is the wall time before the call, ``lease_id`` the lease (or directory) matched to
    this pull.
    """

    reference: str
    since_s: float
    credentials: Credentials | None = None
    lease_id: str | None = None


@dataclass
class Names:
    """Names pulls; a name never changes, as it is a key for watchers."""

    _expected: list[Expected] = field(default_factory=list)
    _known: dict[str, str] = field(default_factory=dict)

    def expect(self, expected: Expected) -> None:
        self._expected.append(expected)

    def forget(self, expected: Expected) -> None:
        if expected in self._expected:
            self._expected.remove(expected)

    def choose(
        self,
        lease_id: str,
        started_s: float,
        *,
        digests: Sequence[str],
        repositories: Sequence[str],
        images: Iterable[str],
        is_final: bool,
        candidates: Sequence[str] = (),
    ) -> str:
        """Return a name for a pull whose manifest is known; empty if it is too early to decide.

        Args:
            digests: the digest of the manifest, then that of the index if there is one.
            repositories: where the documents come from, ``host/path``, best first; containerd adds
                them a moment after the documents themselves.
            is_final: no more information will come; the result is not empty.
            candidates: the images that pods wait for.
        """
        open_ = [
            expected
            for expected in self._expected
            if expected.lease_id is None and expected.since_s <= started_s
        ]
        by_digest = [expected for expected in open_ if parse(expected.reference).digest in digests]
        by_tag = [expected for expected in open_ if not parse(expected.reference).digest]
        if repositories:
            fitting = [
                expected for expected in by_tag if repository(expected.reference) in repositories
            ]
        else:
            fitting = by_tag if is_final else []
        if claimed := by_digest or fitting:  # pulls of one repository differ only in their order
            claimed[0].lease_id = lease_id
            return self._remember(digests, claimed[0].reference)
        if by_tag and not is_final:
            return ""
        if (known := self._known.get(digests[0])) is not None:
            return known
        if len(candidates) == 1 and candidates[0] not in self._known.values():
            return self._remember(digests, candidates[0])
        if image := _best(images, repositories):
            return self._remember(digests, image)
        short = short_digest(digests[0])
        if repositories:
            return self._remember(digests, f"{repositories[0]}@{short}")
        return self._remember(digests, short) if is_final else ""

    def _remember(self, digests: Sequence[str], name: str) -> str:
        self._known[digests[0]] = name
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return name


def _best(images: Iterable[str], repositories: Sequence[str]) -> str:
    # CRI keeps a record under each image's ID as well.
    names = [name for name in images if not is_digest(name)]
    return min(
        names,
        key=lambda name: (repository(name) not in repositories, "@" in name, name),
        default="",
    )


@dataclass(frozen=True, slots=True)
class ImageOwners:
    pods: Callable[[], Sequence[Pod]]
    names_pods: bool = True

    def candidates(
        self,
        digests: Sequence[str],
        repositories: Sequence[str],
        images: Iterable[str],
        *,
        began_s: float = 0.0,
        taken: Collection[str] = (),
    ) -> list[str]:
        """Return the images that a pull may be for, of those that pods wait for; one if certain.

        Args:
            images: the node's names for the image that is pulled.
            began_s: when the pull began (Unix time).
            taken: images of other running pulls.
        """
        open_ = [
            image.image
            for pod, image in self._waiting()
            if pod.created_s <= began_s and (image.reason not in REASONS or pod.status_s <= began_s)
        ]
        parsed = {reference: parse(reference) for reference in open_}
        if exact := [reference for reference in parsed if parsed[reference].digest in digests]:
            return exact[:1]
        references = [
            reference
            for reference, parts in parsed.items()
            if not parts.digest and repository(reference) in repositories and reference not in taken
        ]
        known = set(map(canonical, images))
        return [
            reference for reference in references if canonical(reference) in known
        ] or references

    def wanted(self) -> list[str]:
        return list(dict.fromkeys(image.image for _, image in self._waiting()))

    def pods_of(self, name: str) -> tuple[str, ...]:
        if not self.names_pods or not name:
            return ()
        wanted = canonical(name)
        pods = (str(pod) for pod, image in self._waiting() if canonical(image.image) == wanted)
        return tuple(dict.fromkeys(pods))

    def _waiting(self) -> Iterator[tuple[Pod, PodImage]]:
        for pod in self.pods():
            for image in pod.images:
                if image.is_due and not image.has_started:
                    yield pod, image
