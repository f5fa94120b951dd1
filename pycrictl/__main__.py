"""The program's process: ``python -m pycrictl`` and the installed command."""

from __future__ import annotations

import signal

# Ctrl-C ends the program at once while modules are loaded; ``main`` changes that.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import os
import sys

# Set before grpc is imported: its core writes whatever a peer sends to standard error, including
# control sequences.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# Without gRPC's EventEngine bytes change threads one time less: a call through the proxy takes 0.7
# instead of 0.85 ms, and a quarter less CPU. A gRPC without an alternative ignores this.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

from contextlib import suppress
from io import TextIOWrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

if not {"proxy", "agent"} & set(sys.argv):  # what follows is for commands, not for services
    # Saves a tenth of a short command's time. The default of 700 objects makes the collector visit
    # everything many times while modules are loaded, which leave no cycles.
    gc.set_threshold(100_000)
    # Saves a fifth to a third of it. A service loads all modules before it serves: later its files
    # may be those of a newer version.
    if sys.version_info >= (3, 15):
        sys.set_lazy_imports("all")


def run() -> NoReturn:
    """Run the command line of this process, and exit.

    The interpreter's own exit tears down all modules, which costs a short command a tenth of its
    time. Nothing here needs that: streams are flushed, and everything else is closed where it was
    opened.
    """
    _open_standard_streams()
    if sys.argv[1:2] == ["__complete"]:  # called by the completion scripts
        from pycrictl.cli.completion import answer

        answer.run(sys.argv[0].rpartition("/")[2], sys.argv[2:])
    if sys.argv[1:2] == ["__host"]:  # called over SSH
        from pycrictl.hosts.remote_end import serve

        serve(_run_command, sys.argv[2:])
    # Over a kept connection most commands need nothing of what is loaded below.
    if "PYCRICTL_HOST" in os.environ or sys.argv[1:2] in (["-H"], ["--host"]):
        from pycrictl.hosts.session import run_kept

        if (code := run_kept(sys.argv)) is not None:
            os._exit(code)
    _run_command()


def _run_command() -> NoReturn:
    from pycrictl.base.signals import Terminated, ending, let_kill
    from pycrictl.cli.main import main

    try:
        try:
            code = main()
        finally:
            if ending() is None:  # else the handlers must still ignore repeated signals
                let_kill()
    except KeyboardInterrupt:  # during the report of an earlier error
        code = 130
    except Terminated as exc:
        code = exc.exit_code
    for stream in (sys.stdout, sys.stderr):
        # Closed by the parent process, or blocked until the user interrupts it.
        with suppress(AttributeError, OSError, ValueError, KeyboardInterrupt, Terminated):
            stream.flush()
    os._exit(code if 0 <= code < 256 else 255)  # a remote command may have any status


def _open_standard_streams() -> None:
    """Open the streams that the parent process closed, so no other files get their descriptors.

    Reading from or writing to an O_PATH descriptor fails as if it were closed. If standard output
    is not UTF-8, characters that it cannot encode are escaped, as on standard error.
    """
    for fd, (name, flags, mode) in enumerate(
        (("stdin", os.O_PATH, "r"), ("stdout", os.O_PATH, "w"), ("stderr", os.O_WRONLY, "w"))
    ):
        if getattr(sys, name) is None:
            with suppress(OSError):
                if os.open(os.devnull, flags) == fd:
                    setattr(sys, name, open(fd, mode, closefd=False))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    run()
