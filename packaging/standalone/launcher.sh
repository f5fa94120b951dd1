#!/bin/sh
# Run in the root: links the two programs to the interpreter.
set -eu
cd /src/python # module libraries are named relative to it
libraries=$(/python/bin/python3.13 -c '
import sysconfig
print(*map(sysconfig.get_config_var, ("MODLIBS", "LIBS", "SYSLIBS")))')
link() {
  # Modules from wheels find the interpreter's functions in the program; nothing else shall be seen.
  # shellcheck disable=SC2086
  gcc -O2 -Wall -Wextra -Werror -I/python/include/python3.13 "$@" /src/launcher.c \
    -rdynamic -Wl,--gc-sections -Wl,--exclude-libs,libssl.a:libcrypto.a:libz.a:libffi.a:liblzma.a \
    libpython3.13.a $libraries
}
link -o /programs/folder
link -DSINGLE -o /programs/single
strip --strip-all /programs/folder /programs/single
# What wheels need beside the C library.
mkdir /programs/lib
cp -L /usr/lib/*-linux-gnu/libstdc++.so.6 /lib/*-linux-gnu/libgcc_s.so.1 /programs/lib
cp /usr/share/doc/libstdc++6/copyright /licenses/gcc.txt
