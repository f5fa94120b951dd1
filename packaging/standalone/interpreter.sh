#!/bin/sh
# interpreter.sh TRIPLET: run in the root, with the sources in /src: builds OpenSSL and other
# libraries and, with them, Python, whose own modules are all compiled into one library. For another
# machine, the same Python of this one is in /native; if there is none, it is made.
set -eu
mount -t proc proc /proc
jobs=$(nproc)
target=$1
cross= triplets= for_openssl= for_python=--enable-optimizations prefix=/usr/local
if [ -e /native ]; then
  cross=$target
  prefix=/usr/$target # where its compiler looks
  export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
  triplets="--build=$(gcc -dumpmachine) --host=$target"
  for_openssl="linux-${target%%-*} --cross-compile-prefix=$target-"
  # What cannot be tried here, and is so on Linux. Where access had to be aligned, hashes of strings
  # would be weaker.
  for_python="--with-build-python=/native/bin/python3.13 ac_cv_aligned_required=no
    ac_cv_buggy_getaddrinfo=no ac_cv_computed_gotos=yes ac_cv_file__dev_ptc=no
    ac_cv_file__dev_ptmx=yes ac_cv_working_tzset=yes"
fi
export CFLAGS="-O2 -ffunction-sections -fdata-sections"

cd /src/zlib
CHOST=$cross ./configure --static --prefix="$prefix"
make -j"$jobs" install
cd /src/libffi
# shellcheck disable=SC2086
./configure $triplets --prefix="$prefix" --disable-shared --disable-docs --disable-multi-os-directory
make -j"$jobs" install
cd /src/xz-utils
# shellcheck disable=SC2086
./configure $triplets --prefix="$prefix" --disable-shared --disable-doc --disable-nls \
  --disable-scripts --disable-xz --disable-xzdec --disable-lzmadec --disable-lzmainfo
make -j"$jobs" install
unset CFLAGS

# What Python's ssl does not use, or no server asks for any more.
unused="aria bf camellia cast cms comp dtls idea md4 mdc2 ml-dsa quic rc2 rc4 rmd160 seed slh-dsa
  sm2 sm3 sm4 srp ts whirlpool"
cd /src/openssl
# shellcheck disable=SC2046,SC2086
./Configure $for_openssl --prefix=/ssl --libdir=lib --openssldir=/etc/ssl no-shared no-tests \
  no-docs no-apps no-legacy no-engine no-module $(printf ' no-%s' $unused) \
  -ffunction-sections -fdata-sections
make -j"$jobs"
make install_sw

cd /src/python
# The tables of these are large, or another library would be needed for them.
cat >Modules/Setup.local <<'END'
*disabled*
_codecs_cn
_codecs_hk
_codecs_iso2022
_codecs_jp
_codecs_kr
_codecs_tw
_elementtree
_multiprocessing
_posixshmem
_sqlite3
_zoneinfo
pyexpat
END
# shellcheck disable=SC2086
MODULE_BUILDTYPE=static \
  OPT="-DNDEBUG -O2 -Wall -ffunction-sections -fdata-sections" \
  LDFLAGS="-Wl,--no-as-needed -fno-lto" \
  ZLIB_LIBS=-l:libz.a LIBFFI_LIBS=-l:libffi.a LIBLZMA_LIBS=-l:liblzma.a \
  ./configure --prefix=/python --disable-test-modules --without-doc-strings --without-ensurepip \
  --with-openssl=/ssl $triplets $for_python
# Configure goes on without what it could not try.
for module in _ctypes _hashlib _lsprof _lzma _ssl zlib; do
  grep "PyInit_$module\>" Modules/config.c
done
# The profile is of what each command does first: load modules. What does not run here is compiled as
# without a profile, instead of for size. For the same bytes each time, the profile is of this one
# process, without runs of the build before it, and its addresses are not random. Link-time
# optimization takes a minute for each program, so only the launchers get it (hence -fno-lto above).
cat >/src/start.py <<'END'
import os
import sys

os.system("find . -name '*.gcda' -delete")
before = {*sys.modules}
for _ in range(20):
    import asyncio, contextlib, dataclasses, datetime, email.message, enum, functools, hashlib
    import http.client, inspect, json, logging, pathlib, re, shlex, shutil, socket, ssl, subprocess
    import tarfile, tempfile, textwrap, traceback, typing, urllib.request, uuid, weakref

    for name in sorted({*sys.modules} - before):
        if hasattr(sys.modules[name], "__file__"):
            del sys.modules[name]
END
use="-fprofile-use -fprofile-correction -fprofile-partial-training -flto -ffat-lto-objects"
setarch -R make -j"$jobs" PROFILE_TASK=/src/start.py PGO_PROF_USE_FLAG="$use"
make install
[ -e /native ] || ln -s python /native

mkdir -p /licenses
cp /src/openssl/LICENSE.txt /licenses/OpenSSL.txt
cp /src/python/LICENSE /licenses/Python.txt
cp /src/zlib/LICENSE /licenses/zlib.txt
cp /src/libffi/LICENSE /licenses/libffi.txt
cp /src/xz-utils/COPYING.0BSD /licenses/liblzma.txt
rm -rf /src/openssl /src/zlib /src/libffi /src/xz-utils /src/*.orig.tar.*
find /src/python -name '*.o' -delete
