"""The agent's settings. The options of ``pycrictl agent`` and their defaults are in ``cli``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pycrictl.base.address import Address
from pycrictl.base.errors import UsageError
from pycrictl.base.units import quote
from pycrictl.cluster.agent.api.names import is_name

TLS_FOLDER: Final = "/etc/pycrictl-agent"
PEER_TOKEN: Final = "/var/run/secrets/progress.pycrictl.dev/token"
"""Where the manifests mount the Secret of the certificate, and the token for other agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Limits are 0 for no limit, texts are empty for none.

    ``debugs`` is the kubelet's ``enableDebuggingHandlers``: without it there are no copies and no
    streams. No ``namespaces`` means all.
    """

    listen: Address
    node: str
    namespace: str
    certificate_file: str
    key_file: str
    peer_ca_file: str
    peer_token_file: str
    debugs: bool = True
    namespaces: tuple[str, ...] = ()
    writes_events: bool = False
    spool_dir: str = ""
    spool_limit_bytes: int = 0
    copy_size_limit_bytes: int = 0
    copies_per_pod: int = 0

    def __post_init__(self) -> None:
        for name, what in (
            (self.node, "a node (--node-name, else $NODE_NAME)"),
            (self.namespace, "a namespace (--peer-namespace)"),
            *((name, "a namespace (--namespaces)") for name in self.namespaces),
        ):
            if name and not is_name(name):
                raise UsageError(f"invalid name of {what}: {quote(name)}")
