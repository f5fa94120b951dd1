# Starts pycrictl.pyz. Unlike all others, this file must be readable for Pythons that the program
# does not serve, Python 2 included. Otherwise they would report a syntax error.
import sys

if sys.version_info < (3, 11):
    sys.stderr.write(
        "pycrictl.pyz: needs Python 3.11 or newer, and %s is %d.%d\n"
        % ((sys.executable or "this",) + tuple(sys.version_info[:2]))
    )
    sys.exit(1)

# Before all else: Ctrl-C shall end the program at once while modules are loaded. Unlike signal,
# this module is there already.
import _signal  # type: ignore[import-not-found]  # it is not documented

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import unpack

unpack.start()
