#!/bin/bash
# enclosed.sh COMMAND...: runs it where a kubelet leaves nothing behind on the machine.
# The network is its own (loopback, the nodes' addresses and the pods' bridge), and so are the folders
# that a kubelet and network plugins write to whatever their configuration says, and those of the
# sockets, which manifests name. All are gone with the last process.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "a kubelet needs root" >&2; exit 1; }
if [ "${1:-}" != --inside ]; then
  exec unshare --net --mount --propagation private "$0" --inside "$@"
fi
shift
PATH=$PATH:/usr/sbin:/sbin
mount --make-rshared / # among what runs in here: pods may ask for what is mounted later
ip link set lo up
for address in 10.99.0.1 10.99.0.2; do ip address add $address/32 dev lo; done
for folder in /var/lib/kubelet /var/log/containers /var/log/pods /var/lib/cni /run/containerd \
  /run/pycrictl; do
  mount --types tmpfs --options size=16m kubelet "$(mkdir -p "$folder" && echo "$folder")"
done
exec "$@"
