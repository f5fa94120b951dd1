"""What pycrictl.toml(5) tells of each key, beside the help of the option of the same name."""

from __future__ import annotations

from typing import Final, NamedTuple

from pycrictl.cli.manual.roff import Lines, Part, Terms


class Key(NamedTuple):
    """One key.

    Attributes:
        kind: what its value is, in TOML and in words.
        default: as written in the file; empty if it must be given.
        more: sentences behind the option's help.
    """

    kind: str
    default: str = ""
    more: str = ""


KEYS: Final = {
    "upstream": Key(
        "string, a socket",
        more="A path, with or without `unix://`. It must be given, here or as an option.",
    ),
    "listen": Key(
        "string, a socket",
        '"unix:///run/pycrictl/cri.sock"',
        "What kubelet and others dial. Its folder is made if it does not exist.",
    ),
    "max-parallel-image-pulls": Key(
        "integer, 0 to 10000", "0", "A present image takes no slot, and equal pulls share one."
    ),
    "serialize-image-pulls": Key(
        "boolean",
        "false",
        "It excludes another limit. `false` is no limit, whatever kubelet's file says.",
    ),
    "when-full": Key(
        'string, "wait" or "retry"',
        '"wait"',
        "After the last look a pull fails with ResourceExhausted, `TooManyPullingInParallelErr`.",
    ),
    "retry-interval": Key("string, a duration up to 24h", '"10s"'),
    "retries": Key("integer, 0 to 10000", "3"),
    "kubelet-config": Key(
        "string, a path",
        '""',
        "Its `maxParallelImagePulls` and `serializeImagePulls` count where neither option nor key"
        " names a limit.",
    ),
    "drain-timeout": Key(
        "string, a duration up to 24h",
        '"30s"',
        "The service's `TimeoutStopSec` must be longer.",
    ),
    "admin-socket": Key("string, a socket", '"unix:///run/pycrictl/admin.sock"'),
    "stream-address": Key(
        "string, IP:PORT",
        '"127.0.0.1:0"',
        "Whoever watches pulls must reach it; each URL works once, within a minute.",
    ),
    "container-copy-size-limit": Key(
        'integer of bytes, or string such as "10Gi"', "0", "It counts for each copy alone."
    ),
    "container-copies-per-pod": Key("integer, 0 to 10000", "0"),
    "spool-dir": Key(
        "string, an absolute path",
        '"/var/tmp"',
        "A copy is measured before it is sent, so that it must lie somewhere meanwhile.",
    ),
}

DESCRIPTION: Final = (
    "The settings of `pycrictl proxy`, in TOML. Every option of the command but `--config` is a key"
    " of the file, with the same name and the same rules. The file is read once, at the start; an"
    " unknown key or a bad value ends the start with an error that names it.",
    "The limit takes the first of these that says anything about it: an option, the file, kubelet's"
    " configuration. Any other setting takes the option, then the file, then the default.",
)

EXAMPLE: Final = (
    'upstream = "unix:///run/containerd/containerd.sock"',
    "max-parallel-image-pulls = 3",
    'when-full = "retry"',
    'retry-interval = "5s"',
    "retries = 10",
)

EXAMPLE_OF_KUBELET: Final = (
    'upstream = "unix:///run/containerd/containerd.sock"',
    'kubelet-config = "/var/lib/kubelet/config.yaml"',
)

KUBELET: Final = Part(
    "IN FRONT OF KUBELET",
    (
        "kubelet's own configuration says whom it dials. It is restarted after a change, and"
        " containers do not notice.",
        Terms(
            (
                (
                    "`imageServiceEndpoint: unix:///run/pycrictl/cri.sock`",
                    "Pulls go through the proxy, and nothing else.",
                ),
                (
                    "`containerRuntimeEndpoint: unix:///run/pycrictl/cri.sock`",
                    "Everything goes through it.",
                ),
                ("`serializeImagePulls: false`", "Or kubelet itself sends one pull at a time."),
            )
        ),
        "To see whether it works:",
        Lines(
            (
                "pycrictl -r unix:///run/pycrictl/cri.sock version",
                "pycrictl pull-limiter status",
            )
        ),
    ),
)
