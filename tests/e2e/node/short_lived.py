"""The program, where ``--lifetime=SECONDS`` sets how long an agent keeps inactive copies."""

from __future__ import annotations

import sys

from pycrictl.__main__ import run
from pycrictl.cluster.agent.node_agent import AgentSettings

if __name__ == "__main__":
    (word,) = (word for word in sys.argv if word.startswith("--lifetime="))
    sys.argv.remove(word)
    assert AgentSettings.__init__.__kwdefaults__ is not None
    AgentSettings.__init__.__kwdefaults__["copy_lifetime_s"] = float(word.partition("=")[2])
    run()
