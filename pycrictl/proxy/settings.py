"""The proxy's settings. The options of ``pycrictl proxy`` and their defaults are in ``cli``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from pycrictl.base.address import Address
from pycrictl.base.errors import UsageError
from pycrictl.base.units import quote
from pycrictl.proxy.pulls.pull_calls import Policy

DEFAULT_PATH: Final = "/etc/pycrictl.toml"
DEFAULT_LISTEN: Final = "unix:///run/pycrictl/cri.sock"
OWN_KUBECONFIG: Final = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The proxy's settings: 0 means no limit, an empty text none; sockets are paths.

    ``limit_origin`` is ``flag``, a file's path or ``default``. ``drain_timeout_s`` None means no
    limit. ``events`` is a kubeconfig, or ``kubelet`` for the kubelet's own.
    """

    upstream: str
    listen: str
    limit: int
    limit_origin: str
    policy: Policy
    retry_interval_s: float
    retries: int
    kubelet_config: str
    drain_timeout_s: float | None
    admin_socket: str
    stream_address: Address
    copy_size_limit_bytes: int
    copies_per_pod: int
    spool_dir: str
    state_dir: str
    metrics_address: Address | None
    events: str

    def __post_init__(self) -> None:
        if len({self.upstream, self.listen, self.admin_socket}) < 3:
            raise UsageError("upstream, listen and admin-socket must be three different sockets")
        if ipaddress.ip_address(self.stream_address.host).is_unspecified:
            given = quote(self.stream_address.authority)
            raise UsageError(
                f"stream-address: {given} stands for all addresses, but a URL needs one"
            )
