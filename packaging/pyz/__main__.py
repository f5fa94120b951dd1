# Starts pycrictl.pyz. Unlike all others, this file must parse in Pythons that the program does not
# support, including Python 2. Otherwise they would report a syntax error.
import sys

if sys.version_info < (3, 11):
    sys.stderr.write(
        "pycrictl.pyz: needs Python 3.11 or newer, and %s is %d.%d\n"
        % ((sys.executable or "this",) + tuple(sys.version_info[:2]))
    )
    sys.exit(1)

# First of all: Ctrl-C must end the program at once while modules are being loaded. Unlike signal,
# _signal is already loaded.
import _signal  # type: ignore[import-not-found]  # it is not documented

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import unpack

unpack.start()
