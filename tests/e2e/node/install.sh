#!/bin/bash
# Installs what this machine lacks: "install.sh node" for the throwaway node alone, which is all that
# the demo and the playground need, without a word for all tests. Quick when nothing is missing.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

missing=()
command -v containerd >/dev/null || missing+=(containerd)
command -v runc >/dev/null || missing+=(runc)
command -v docker-registry >/dev/null || missing+=(docker-registry)
[ -x /usr/lib/cni/loopback ] || missing+=(containernetworking-plugins)
# The containers' only program: a dynamically linked busybox would find no libraries there.
{ [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1; } || missing+=(busybox-static)
"${PYTHON3:-python3}" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)

if [ "${1:-}" != node ]; then
  # The man pages are linted with the two programs that show them, and the unit with its own.
  command -v man >/dev/null || missing+=(man-db)
  command -v mandoc >/dev/null || missing+=(mandoc)
  command -v systemd-analyze >/dev/null || missing+=(systemd)
  command -v jq >/dev/null || missing+=(jq)
  # Archives of images are exchanged with skopeo and compressed by zstd; time measures memory.
  for program in skopeo zstd time; do
    type -P $program >/dev/null || missing+=($program)
  done
  # It talks to the stand-in of an API server; any kubectl that is here already will do.
  command -v kubectl >/dev/null || missing+=(kubernetes-client)
  # Metrics and alert rules are checked with promtool.
  command -v promtool >/dev/null || missing+=(prometheus)
  # Hosts over SSH: a server, another user's rights, and login shells that are not POSIX's.
  [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
  command -v sudo >/dev/null || missing+=(sudo)
  for shell in zsh fish tcsh; do
    command -v $shell >/dev/null || missing+=($shell)
  done
  [ -e /usr/share/bash-completion/bash_completion ] || missing+=(bash-completion)
fi

[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  # Not an error: everything but the tests on a real containerd works without.
  echo "missing for the throwaway node: ${missing[*]} (installed here as root on Debian)" >&2
  exit 0
fi

# What starts with the machine: the links of systemd, and those of System V.
enabled() {
  find /etc/systemd /etc/rc?.d -type l \( -path '/etc/systemd/*' -o -name 'S*' \) 2>/dev/null | sort
}

# No package starts a daemon on this machine, now or later: what was enabled before stays so.
leave_disabled() {
  [ -z "${policy:-}" ] || rm -f "$policy"
  local link
  while read -r link; do
    case $link in
      /etc/systemd/*) rm -f "$link" ;; # an upgrade takes it for the administrator's wish
      *) [ ! -L "$link" ] || update-rc.d "${link##*/S??}" disable || true ;;
    esac
  done < <(comm -13 <(echo "$before") <(enabled))
}
before=$(enabled) || true # of a machine that has neither
trap leave_disabled EXIT
if [ ! -e /usr/sbin/policy-rc.d ]; then
  policy=/usr/sbin/policy-rc.d
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
fi
export DEBIAN_FRONTEND=noninteractive
# An unreachable third-party source must not stop us: the install itself tells what is missing.
apt-get update -qq || true
apt-get install -qq -y --no-install-recommends "${missing[@]}"
