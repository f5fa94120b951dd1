#!/bin/sh
# Prints the Debian mirror of this machine's apt.
set -eu
apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' |
  sort -u | grep -m 1 . || { echo 'no Debian among the sources of apt: apt-get update' >&2; exit 1; }
