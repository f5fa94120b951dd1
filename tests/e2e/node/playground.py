"""A shell on a throwaway node, which is removed when the shell ends, however it ends.

This process ends with the shell. If this process ends first, by a closed terminal or a signal, the
lab's janitor notices and ends the shell as well.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from functools import partial
from typing import Final

from tests.waiting import wait_until

from .kubelet import Kubelet
from .stage import API, BATCH, CACHE, LIMIT, REPORT, WEB, Stage, perform

RATE_BYTES_PER_S: Final = 96 * 1024

GREETING: Final = f"""
A node of your own: default/web and jobs/batch run, default/api crashes, and jobs/report
waits in line behind a slow pull, as the proxy lets {LIMIT} image be pulled at once.
Six things to try:

  pycrictl image-pull-progress       the pulls, live; Ctrl-C leaves them alone
  pycrictl pull-limiter set 2        who is in line starts at once
  pycrictl why default/api           why it crashes, and its last words
  pycrictl why jobs/report           what it waits for, and how long still
  pycrictl cp web:/srv/index.html .  out of a container that has no shell
  pycrictl logs -f <Tab>             names are completed, as are paths for cp

The examples of README.md work here too, except on other hosts and in a cluster.
exit or Ctrl-D ends the node.
"""
_RC: Final = """
[ ! -e /usr/share/bash-completion/bash_completion ] || . /usr/share/bash-completion/bash_completion
. <(pycrictl completion bash)
PS1='playground# '
unset HISTFILE PROMPT_COMMAND
"""


def main() -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("playground: it needs a terminal", file=sys.stderr)
        return 1
    status = perform("playground", _enter)
    if not status:
        print("The node is gone.")
    return status


def _enter(stage: Stage) -> None:
    _furnish(stage)
    print(GREETING, flush=True)
    _run_shell(stage)


def _are_running(kubelet: Kubelet, number: int) -> bool:
    return len(kubelet.running_containers()) == number


def _furnish(stage: Stage) -> None:
    kubelet, store = stage.lab.node.kubelet, stage.lab.node.store
    for running, workload in enumerate((WEB, BATCH), 1):
        stage.keep(workload)
        wait_until(partial(_are_running, kubelet, running))
    stage.keep(API)
    stage.lab.registry.limit(RATE_BYTES_PER_S, CACHE.partition(":")[0])
    stage.pull(CACHE)
    wait_until(store.ingests)
    stage.keep(REPORT)


def _run_shell(stage: Stage) -> None:
    """Run the shell; restore the terminal when it has ended or was killed."""
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    rc = stage.lab.folder / "playground.rc"
    rc.write_text(_RC)
    # After a killed shell, no group has the terminal, and this process is in the background.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    stage.start("bash", "--rcfile", str(rc), "-i").wait()
    os.tcsetpgrp(terminal, os.getpgrp())
    termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


if __name__ == "__main__":
    sys.exit(main())
