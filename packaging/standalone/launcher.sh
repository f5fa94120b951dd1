#!/bin/sh
# launcher.sh TRIPLET, run in the build root: links the two programs with the interpreter.
set -eu
target=$1
cd /src/python # module libraries are named relative to it
# shellcheck disable=SC2016
libraries=$(echo 'libraries: ; @echo $(MODLIBS) $(LIBS) $(SYSLIBS)' |
  make -s -f Makefile -f - libraries)
link() {
  program=$1
  shift
  "$target-gcc" -O2 -Wall -Wextra -Werror -I/python/include/python3.13 "$@" -c /src/launcher.c \
    -o /src/launcher.o
  # Modules from wheels find the interpreter's functions in the program; other symbols are hidden.
  # Link-time optimization compiles Python's code once more; -w hides the warnings about it.
  # shellcheck disable=SC2086
  "$target-gcc" -O2 -flto=auto -w -o "/programs/$program" /src/launcher.o \
    -rdynamic -Wl,--gc-sections -Wl,--exclude-libs,libssl.a:libcrypto.a:libz.a:libffi.a:liblzma.a \
    libpython3.13.a $libraries
}
link folder
link single -DSINGLE
"$target-strip" --strip-all /programs/folder /programs/single
# Libraries that wheels need besides the C library.
mkdir /programs/lib
for library in libstdc++.so.6 libgcc_s.so.1; do
  cp -L "$("$target-gcc" -print-file-name=$library)" /programs/lib
done
cp /usr/share/doc/libstdc++6/copyright /licenses/gcc.txt
