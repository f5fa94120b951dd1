"""The methods of a copy: what all of them can do, and the choice among them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.content import OnBytes
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.errors import Unimplemented

log = logging.getLogger("pycrictl.copy")

NAMES: Final = ("rpc", "node", "exec")
"""The names of the methods, the best first."""

OnTotal = Callable[[int], None]
"""Called before the first ``OnBytes`` with the sum of all bytes that it will be given; once more
if it turns out to be another."""

_ABSOLUTE: Final = 'names in the archive begin with "/", which was left out'

T = TypeVar("T")
M = TypeVar("M", bound="Method")


class Watch(NamedTuple):
    """What is called while a copy goes on.

    Attributes:
        on_bytes: with how many more bytes have been copied: of content or of an archive, as for
            ``on_total``.
        on_skip: with what is left out.
        on_total: with the size of the whole, where it is known beforehand. None: the size is not
            wanted, and nothing is measured.
        on_note: with what else the user should know.
        on_archive: with the size of the archive that is made, where it is known beforehand.
    """

    on_bytes: OnBytes
    on_skip: OnSkip
    on_total: OnTotal | None = None
    on_note: Callable[[str], None] | None = None
    on_archive: OnTotal | None = None

    def note_names(self, *, has_absolute: bool) -> None:
        """Say that slashes were left out of names, if they were."""
        if has_absolute and self.on_note is not None:
            self.on_note(_ABSOLUTE)


class Announced(NamedTuple):
    """An archive of which size and checksum are known before it comes.

    Attributes:
        pieces: of it, each used before the next is asked for. An error that comes from there leaves
            the destination as it was.
        size_bytes: how long it shall be.
        crc32: its checksum.
    """

    pieces: Iterable[memoryview]
    size_bytes: int
    crc32: int


class Method(Protocol):
    """A way to copy from and to one container.

    All functions take:

    - ``path``: in the container, absolute, without ``..``; ``local``: of this machine.
    - ``follow``: copy what the source points to, if it is a link.
    - ``watch``: called while the copy goes on.

    All raise ``Unimplemented`` where the method cannot be used for this container, and only before
    anything was done or read from a stream: the next method may be tried. Any other error is about
    the copy itself, and another method would not help. After an error the destination is as it was,
    unless the message says otherwise.

    Attributes:
        name: one of ``NAMES``.
    """

    name: str

    def copy_from(
        self, path: bytes, local: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Summary:
        """Copy out of the container."""

    def copy_to(
        self, local: bytes, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Summary:
        """Copy into the container."""

    def pack_from(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Generator[memoryview, None, Summary]:
        """Yield what is at ``path`` as an archive, and return what is in it.

        A piece is valid until the next is asked for.

        ``Unimplemented`` comes with the first piece, ``CopyError`` with the first entry that
        breaks a rule.
        """

    def unpack_to(self, stream: int, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Unpack an archive, which comes from a descriptor, into a directory of the container."""


class Placing(Method, Protocol):
    """A method that the service of a node has for its clients, too."""

    def place(self, archive: Announced, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Unpack an archive to where a path says, as ``CopyToContainer`` does.

        If the path is a directory, what the archive holds goes into it, each entry under its own
        name; ``DIR/.`` requires a directory. Otherwise the archive must hold one file or directory,
        which gets the path as its name.

        Args:
            archive: what comes.
            path: in the container.
            rules: what may be in the archive.
            watch: called while the copy goes on.
        """


def first_to_serve(methods: Iterable[M], act: Callable[[M], T]) -> T:
    """Do something by the first method that can be used.

    Args:
        methods: at least one; the best first. The next is only asked for if it is needed.
        act: what to do.

    Raises:
        Unimplemented: none can be used; the message gives the reasons.
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
