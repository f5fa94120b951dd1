"""Which digest a tag stands for, asked of its registry without credentials. Bounded, and optional.

It is that of the manifest or index that the registry has under the tag. Mirrors are not asked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Final

from pycrictl.progress.registry.client import Question, fetch

TIMEOUT_S: Final = 1.0
MOST: Final = 8
"""Most tags that are asked for at once."""


def resolve(references: Iterable[str], *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return the digests that tags stand for now, as far as their registries say so in time.

    Args:
        references: images by tag.
        timeout_s: limit for all together.
    """
    found: dict[str, str] = {}

    def ask(reference: str) -> None:
        with suppress(Exception):  # whatever a registry does, the tag is not known then
            question = Question(reference, environ=os.environ)
            if (manifest := fetch(question, reference, timeout_s=timeout_s)) is not None:
                found[reference] = f"sha256:{sha256(manifest).hexdigest()}"

    threads = [
        threading.Thread(target=ask, args=(one,), daemon=True) for one in [*references][:MOST]
    ]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(give_up_at - time.monotonic(), 0.0))
    return dict(found)
