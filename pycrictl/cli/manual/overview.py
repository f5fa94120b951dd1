"""What pycrictl(1) tells beside the options and commands."""

from __future__ import annotations

from typing import Final

from pycrictl.cli.manual.roff import Lines, Part, Terms

DESCRIPTION: Final = (
    "`pycrictl` dials the socket of a node's container runtime, by the CRI, the interface that"
    " kubelet uses. It has the commands, options, output formats and the configuration file of"
    " crictl, and takes its place where it is linked under the name `crictl`. What it deliberately"
    " does otherwise is in pycrictl-compat(7).",
    "Beyond crictl, it shows image pulls while they run, whoever started them, and serves a proxy"
    " in front of the runtime that adds the progress of pulls and a limit of parallel ones.",
    "The socket of a runtime belongs to root, and so must whoever uses it.",
)

GRAMMAR: Final = Part(
    "COMMAND LINE",
    (
        "Global options stand before the command, its own options behind it, before or after its"
        " arguments. In `exec` the first argument ends them, since another program's words follow;"
        " `--` ends them everywhere.",
        "`-name value`, `--name value` and `--name=value` mean the same. Switches take a value with"
        " an equals sign only: `--all=false`. Letters may be joined: `-aq`. An option that is given"
        " twice takes the last value, but for those that are called repeatable; these also take"
        " several values with commas between them.",
        "Durations have a unit: `500ms`, `2s`, `1m30s`. Integers may be written as `0x10`, `0o17`,"
        " `0b1` or `1_000`.",
        "`help` as the first argument of one of crictl's commands shows its options, as `--help`"
        " does.",
    ),
)

CONFIGURATION: Final = Part(
    "CONFIGURATION",
    (
        "A setting takes the first of these: its option, its environment variable, the"
        " configuration file, the default.",
        "The file is that of `--config`, else of `CRI_CONFIG_FILE`, else `/etc/crictl.yaml`. If it"
        " does not exist, the file `crictl.yaml` in the folder of the program is read. A file that"
        " was named must exist and be valid. At the default place it may be missing, and an invalid"
        " one is ignored with a warning.",
        "It is a flat YAML mapping, and JSON is fine as well. All keys may be left out:",
        Terms(
            (
                (
                    "`runtime-endpoint`",
                    "Socket of the runtime, such as `unix:///run/containerd/containerd.sock`. As"
                    " `--runtime-endpoint`.",
                ),
                (
                    "`image-endpoint`",
                    "Socket of the image service, if it is another. As `--image-endpoint`.",
                ),
                (
                    "`timeout`",
                    "Limit of each call in whole seconds; 0 is the default, 2. As `--timeout`.",
                ),
                ("`debug`", "`true` logs calls. As `--debug`."),
                (
                    "`pull-image-on-create`",
                    "`true` has `create` pull images, as `--with-pull` does.",
                ),
                (
                    "`disable-pull-on-run`",
                    "`true` keeps `run` from pulling images, as `--no-pull` does.",
                ),
                (
                    "`max-retries`",
                    "How often to try again to connect; negative is for ever, the default is 3. As"
                    " `--max-retries`.",
                ),
            )
        ),
        "For example:",
        Lines(("runtime-endpoint: unix:///run/containerd/containerd.sock", "timeout: 10")),
        "pycrictl-config(1) shows and changes it. Nothing must be configured: without an endpoint,"
        " the first of these that answers is taken.",
        Lines(
            (
                "unix:///run/containerd/containerd.sock",
                "unix:///run/crio/crio.sock",
                "unix:///var/run/cri-dockerd.sock",
            )
        ),
    ),
)

ENVIRONMENT: Final = (
    ("`CONTAINER_RUNTIME_ENDPOINT`", "As `--runtime-endpoint`. Given also when it is empty."),
    ("`IMAGE_SERVICE_ENDPOINT`", "As `--image-endpoint`. Given also when it is empty."),
    ("`CRI_CONFIG_FILE`", "As `--config`. Given also when it is empty."),
    ("`CRICTL_AUTH`", "As `--auth` of `pull`, `create` and `run`."),
    ("`CRICTL_CREDS`", "As `--creds` of the same."),
    ("`CRICTL_PULL_TIMEOUT`", "As `--pull-timeout` of the same."),
    ("`PYCRICTL_SLOTS_DIR`", "Folder of the locks of `pull --max-parallel-image-pulls`."),
    (
        "`PYCRICTL_COMPLETION_TIMEOUT`",
        "How long completion may ask the runtime, see pycrictl-completion(1).",
    ),
    ("`TERM`", "`dumb` means a terminal without bars."),
)

FILES: Final = (
    ("`/etc/crictl.yaml`", "The configuration file."),
    ("`/etc/pycrictl.toml`", "The settings of `pycrictl proxy`, see pycrictl.toml(5)."),
    ("`/run/pycrictl/cri.sock`, `/run/pycrictl/admin.sock`", "Sockets of `pycrictl proxy`."),
    ("`/run/pycrictl-slots/`", "Locks of `pycrictl pull --max-parallel-image-pulls`."),
)

EXIT_STATUS: Final = (
    ("0", "Success."),
    ("1", "An error: of the command line, of a file, of the runtime, or of one of many things."),
    ("3", "There is no such command."),
    ("70", "A fault of the program itself; `--debug` shows where."),
    ("126, 127", "`exec`: the command could not be started, or is not in the container."),
    ("130", "Ctrl-C."),
    ("141, 143", "The reader of the output has gone; SIGTERM."),
)

EXEC_STATUS: Final = "The status of `exec` is that of the command in the container."

DIAGNOSTICS: Final = Part(
    "DIAGNOSTICS",
    (
        "Results go to standard output, and everything else to standard error. An error is a line"
        " that begins with `pycrictl:`, and where something can be done about it, one that begins"
        " with `hint:`. `--debug` logs each call with its time, and shows where an error came from;"
        " passwords and tokens are never shown.",
    ),
)

STANDARDS: Final = (
    "The CRI is version `runtime.v1`. Image pull progress is proposed in KEP-5334 of Kubernetes."
)
