# Starts pycrictl.pyz. Unlike all others, this file must be readable for Pythons that the program
# does not serve, Python 2 included. Otherwise they would report a syntax error.
import sys

if sys.version_info < (3, 11):
    sys.stderr.write(
        "pycrictl.pyz: needs Python 3.11 or newer, and %s is %d.%d\n"
        % ((sys.executable or "this",) + tuple(sys.version_info[:2]))
    )
    sys.exit(1)

import unpack

unpack.start()
