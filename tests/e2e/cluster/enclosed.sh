#!/bin/bash
# enclosed.sh COMMAND...: runs COMMAND where a kubelet leaves nothing behind on the machine.
# It gets its own network (loopback, the nodes' addresses, the pods' bridge) and empty folders in
# place of those that kubelets and network plugins write to regardless of their configuration, and
# of those with the sockets that manifests name. All of this disappears with the last process.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "a kubelet needs root" >&2; exit 1; }
if [ "${1:-}" != --inside ]; then
  exec unshare --net --mount --propagation private "$0" --inside "$@"
fi
shift
PATH=$PATH:/usr/sbin:/sbin
mount --make-rshared / # only inside: pods may need to see later mounts
ip link set lo up
for address in 10.99.0.1 10.99.0.2; do ip address add $address/32 dev lo; done
for folder in /var/lib/kubelet /var/log/containers /var/log/pods /var/lib/cni /run/containerd \
  /run/pycrictl; do
  mount --types tmpfs --options size=16m kubelet "$(mkdir -p "$folder" && echo "$folder")"
done
exec "$@"
