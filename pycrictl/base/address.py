"""``IP:PORT``: where a service listens."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from pycrictl.base.units import quote


class Address(NamedTuple):
    host: str
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse ``IP:PORT``, with ``[…]`` around an IPv6 address; raise ValueError."""
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{quote(text)} is not IP:PORT, such as 127.0.0.1:9464")
    return Address(str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))), int(port))
