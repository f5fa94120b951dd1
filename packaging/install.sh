#!/bin/bash
# install.sh [PROGRAM:PACKAGE...]: installs the missing programs that building and testing the packages
# needs, and those of the arguments.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

missing=()
for pair in debootstrap:debootstrap dpkg-source:dpkg-dev lintian:lintian rpmbuild:rpm strip:binutils \
  patchelf:patchelf umoci:umoci skopeo:skopeo "$@"; do
  command -v "${pair%:*}" >/dev/null || missing+=("${pair#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing for the packages: ${missing[*]} (installed here as root on Debian)" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || true
apt-get install -qq -y --no-install-recommends "${missing[@]}"
