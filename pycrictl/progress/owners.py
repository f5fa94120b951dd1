"""Which pods need which images, so that a pull has the name that its pod uses. Pure.

containerd shows of a running pull its repository, without the registry's port and without the tag,
and the digest of its manifest. A pod names a repository and a tag. So a pull is matched to what
pods wait for by the repository; where several of their tags fit, an image that the node has under
the same digest decides, and else the pull is shown as one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pycrictl.kube.pods import Pod, PodImage
from pycrictl.progress.reference import (
    canonical,
    is_same_image,
    parse,
    repository,
    short_digest,
)


class ImageOwners:
    """Names pulls after what the node's pods need."""

    def __init__(self, pods: Callable[[], Sequence[Pod]], *, names_pods: bool = True) -> None:
        self._pods = pods
        self._names_pods = names_pods
        self._choices: dict[str, tuple[str, ...]] = {}

    def name(
        self, digests: Sequence[str], repositories: Sequence[str], images: Iterable[str]
    ) -> str:
        """Return what the pods that wait for an image call it; empty if none does.

        Args:
            digests: of its manifest, and of its index if there is one.
            repositories: where it comes from, ``host/path``.
            images: names that the node has for the same digest.
        """
        needed = dict.fromkeys(one.image for _, one in self._waiting())
        parsed = {reference: parse(reference) for reference in needed}
        if exact := [one for one in needed if parsed[one].digest in digests]:
            return exact[0]
        found = [
            one for one in needed if not parsed[one].digest and repository(one) in repositories
        ]
        if len(found) > 1:
            known = set(map(canonical, images))
            found = [one for one in found if canonical(one) in known] or found
        if len(found) < 2:
            return found[0] if found else ""
        name = f"one of {', '.join(found)} ({short_digest(digests[0])})"
        self._choices[name] = tuple(found)
        return name

    def wanted(self) -> list[str]:
        return list(dict.fromkeys(one.image for _, one in self._waiting()))

    def pods_of(self, name: str) -> str:
        if not self._names_pods or not name:
            return ""
        wanted = set(map(canonical, self._choices.get(name, (name,))))
        pods = dict.fromkeys(
            str(pod) for pod, one in self._waiting() if canonical(one.image) in wanted
        )
        first, *others = pods or [""]
        return f"{first} and {len(others)} more" if others else first

    def is_one_of(self, name: str, references: Iterable[str]) -> bool:
        choices = self._choices.get(name, (name,))
        return any(is_same_image(one, choice) for one in references for choice in choices)

    def _waiting(self) -> Iterator[tuple[Pod, PodImage]]:
        for pod in self._pods():
            for one in pod.images:
                if not one.has_started:
                    yield pod, one
