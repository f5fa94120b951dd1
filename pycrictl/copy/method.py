"""The methods of a copy: what all of them can do, and the choice among them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import Unimplemented

log = logging.getLogger("pycrictl.copy")

NAMES: Final = ("rpc", "node", "exec")
"""The names of the methods, the best first."""

T = TypeVar("T")


class Method(Protocol):
    """A way to copy from and to one container, by two verbs; the rest is in ``ends``.

    Both raise ``Unimplemented`` where the method cannot be used for this container, and only before
    anything was done or read from a stream: the next method may be tried. Any other error is about
    the copy itself, and another method would not help. After an error the destination is as it was,
    unless the message says otherwise.

    Attributes:
        name: one of ``NAMES``.
    """

    name: str

    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> AbstractContextManager[Outgoing]:
        """Give what is at a path of the container as an archive.

        Args:
            path: absolute, without ``..``.
            rules: what the user allows; whoever takes the archive holds them, too.
            follow: copy what the path points to, if it is a link.
        """

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Put an archive into its place in the container."""


def first_to_serve(methods: Iterable[Method], act: Callable[[Method], T]) -> T:
    """Do something by the first method that can be used.

    Args:
        methods: at least one; the best first. The next is only asked for if it is needed.
    """
    refusals: list[tuple[str, Unimplemented]] = []
    for method in methods:
        log.debug("= trying the method %s", method.name)
        try:
            done = act(method)
        except Unimplemented as exc:
            log.debug("= the method %s cannot be used: %s", method.name, exc.message)
            refusals.append((method.name, exc))
        else:
            log.debug("= the method %s is used", method.name)
            return done
    if len(refusals) == 1:
        raise refusals[0][1]
    reasons = "; ".join(f"{name}: {exc.message}" for name, exc in refusals)
    raise Unimplemented(f"cannot copy to or from this container ({reasons})", code="Unimplemented")
