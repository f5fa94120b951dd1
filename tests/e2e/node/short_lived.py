"""The program, where ``--lifetime=SECONDS`` sets how long an agent keeps inactive copies."""

from __future__ import annotations

import sys

from pycrictl.__main__ import run
from pycrictl.cluster.agent.copies.node_copies import NodeCopies

if __name__ == "__main__":
    (word,) = (word for word in sys.argv if word.startswith("--lifetime="))
    sys.argv.remove(word)
    assert NodeCopies.__init__.__kwdefaults__ is not None
    NodeCopies.__init__.__kwdefaults__["lifetime_s"] = float(word.partition("=")[2])
    run()
