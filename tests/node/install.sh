#!/bin/bash
# Installs what the throwaway node needs and this machine lacks. Quick when nothing is missing.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

missing=()
command -v containerd >/dev/null || missing+=(containerd)
command -v runc >/dev/null || missing+=(runc)
command -v docker-registry >/dev/null || missing+=(docker-registry)
[ -x /usr/lib/cni/loopback ] || missing+=(containernetworking-plugins)
# The containers' only program: a dynamically linked busybox would find no libraries there.
{ [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1; } || missing+=(busybox-static)
# The man pages are linted with the two programs that show them, and the unit with its own.
command -v man >/dev/null || missing+=(man-db)
command -v mandoc >/dev/null || missing+=(mandoc)
command -v systemd-analyze >/dev/null || missing+=(systemd)
command -v jq >/dev/null || missing+=(jq)
# It talks to the stand-in of an API server; any kubectl that is here already will do.
command -v kubectl >/dev/null || missing+=(kubernetes-client)
# Metrics and alert rules are checked with promtool; its package starts a server unless kept from it.
command -v promtool >/dev/null || missing+=(prometheus)
# It pulls with the library that CRI-O pulls with; skopeo asks registries for manifests.
command -v podman >/dev/null || missing+=(podman)
command -v skopeo >/dev/null || missing+=(skopeo)
for shell in zsh fish; do
  command -v $shell >/dev/null || missing+=($shell)
done
[ -e /usr/share/bash-completion/bash_completion ] || missing+=(bash-completion)
"${PYTHON3:-python3}" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)

[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  # Not an error: everything but the tests on a real containerd works without.
  echo "missing for the throwaway node: ${missing[*]} (installed here as root on Debian)" >&2
  exit 0
fi

# The packages must not start daemons of their own on this machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
fi
export DEBIAN_FRONTEND=noninteractive
# An unreachable third-party source must not stop us: the install itself tells what is missing.
apt-get update -qq || true
apt-get install -qq -y --no-install-recommends "${missing[@]}"
