"""What pycrictl deliberately does otherwise than crictl 1.36, in all commands.

With ``compat_commands`` it is the source of pycrictl-compat(7).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Difference(NamedTuple):
    """One difference.

    Attributes:
        here: what pycrictl does.
        why: what crictl does, or what is gained.
    """

    here: str
    why: str


GENERAL: Final[dict[str, tuple[Difference, ...]]] = {
    "Command line": (
        Difference(
            "A wrong number of arguments is an error: a line on standard error, status 1.",
            "crictl prints its help on standard output and exits with 0, which no script notices.",
        ),
        Difference(
            "An unknown output format is an error, told before anything is sent.",
            "`images`, `stats` and `statsp` of crictl then print a table, others their help.",
        ),
        Difference(
            "An empty ID or name as an argument is an error. Options that select, such as `--id`,"
            " take an empty one for none, as crictl does.",
            "It comes from a variable that a script has not set.",
        ),
        Difference(
            "An empty name of a file, such as that of a pod's configuration, is an error.",
            "It comes from a variable that a script has not set.",
        ),
        Difference(
            "All commands and the global options take short switches in one word, as in"
            " `inspect -qo json` and `-Dr unix:///run/containerd/containerd.sock`.",
            "crictl takes that in some commands only.",
        ),
        Difference(
            "A negative `--cancel-timeout` is an error, and so is a `--seconds` of `stats` and"
            " `statsp` that is negative or more than a day.",
            "No call and no measurement has such a length.",
        ),
        Difference(
            "Where nothing is found, or no container is selected, the status is 1.",
            "crictl prints a page of help and exits with 0.",
        ),
        Difference(
            "Options are taken after arguments as well, but for `exec`.",
            "crictl ignores them without a word, or takes them for arguments.",
        ),
        Difference(
            "Unknown commands and options are answered with the nearest that there is.",
            "crictl prints the whole help.",
        ),
        Difference(
            "Values of labels and annotations may hold an equals sign.",
            "crictl refuses them.",
        ),
        Difference(
            "Regular expressions are those of Python. `[[:alpha:]]` and its like are refused, and a"
            " pattern that looks at one name for more than two seconds is an error.",
            "There is no library for Go's dialect here; what both read is what people write.",
        ),
        Difference(
            "A variable `CRICTL_AUTH`, `CRICTL_CREDS` or `CRICTL_PULL_TIMEOUT` that is empty counts"
            " as not set.",
            "crictl takes it for given, and fails.",
        ),
        Difference(
            "`--help` does not read the configuration file.",
            "Help is wanted most where that file is broken.",
        ),
        Difference("`--version` shows the version of pycrictl.", "It is another program."),
    ),
    "Messages and output": (
        Difference(
            "An error is one line, `pycrictl: ...`, and perhaps a line `hint: ...`.",
            "crictl prints two lines of two log libraries, with times and places in its source.",
        ),
        Difference(
            "No line tells of a success that has no result.",
            "crictl logs that it pulls an image, or that the runtime's configuration is updated.",
        ),
        Difference(
            "No input ends in a crash: a fault of the program is a line and status 70.",
            "crictl ends with a dump of all its threads in some cases.",
        ),
        Difference(
            "Control characters in names, labels and messages are shown as escapes. What containers"
            " write is passed on as it is by `logs`, `exec` and `attach`.",
            "A label could otherwise steer the terminal.",
        ),
        Difference(
            "No password or token is shown with `--debug`.",
            "crictl logs whole requests, credentials included.",
        ),
        Difference(
            "The screen is cleared with `--watch`, and by `config --list`, on a terminal only.",
            "crictl writes the codes into pipes and files, and before single tables as well.",
        ),
        Difference(
            "With `--watch` on a terminal, as much as fits is painted in one place, when it"
            " differs; the last line tells how many more there are.",
            "crictl prints all anew each time, so that the headings scroll away.",
        ),
        Difference(
            "Where IDs are wanted, a name is not found either, but a hint tells whose ID is meant.",
            "To find that ID takes a list, which is asked for only then.",
        ),
        Difference(
            "In JSON a colon is followed by one space.",
            "With crictl it is one or two, depending on how it was built.",
        ),
        Difference(
            "Integers beyond 2^53 are exact.",
            "crictl rounds them, as it reads them as floating point numbers.",
        ),
        Difference(
            "Numbers in Go templates are numbers: `{{if .status.exitCode}}` is false for 0.",
            "For crictl they are texts, of which only the empty one is false.",
        ),
        Difference(
            "`define`, `template`, `block` and `call` are refused by name in Go templates, and so"
            " are `%[2]s` and `%*d` of `printf`.",
            "A template of one line has no use for them.",
        ),
        Difference(
            "Ctrl-C ends the `--watch` of lists and measurements, `logs --follow` and"
            " `port-forward` with status 0; whatever else is interrupted ends with 130, at the"
            " first Ctrl-C.",
            "crictl exits with 1, and `exec` and `attach` swallow the first.",
        ),
    ),
    "Configuration": (
        Difference(
            "`max-retries` is 3 also where a configuration file does not set it.",
            "For crictl any file without it means 0.",
        ),
        Difference(
            "An invalid file at the default place is ignored with a warning.",
            "crictl ignores it without a word.",
        ),
        Difference(
            "A file beyond 1 MiB, and one with YAML aliases, is invalid.",
            "It is a log or a device that was named by mistake.",
        ),
        Difference(
            "Without an endpoint the first socket that answers is taken, and nothing is said.",
            "crictl prints a warning, and an error for each socket before that one.",
        ),
    ),
    "Calls to the runtime": (
        Difference(
            "No `Version` and no `ImageFsInfo` is sent to validate a connection.",
            "A look at the socket finds what is wrong with it, without waiting for an answer.",
        ),
        Difference(
            "The image service is dialled by commands that need it.",
            "With crictl, one that is out of order breaks `ps`, `inspect` and `exec`.",
        ),
        Difference(
            "Only what may pass is tried again: a socket that is missing, or where nobody listens.",
            "crictl tries again after any error.",
        ),
        Difference(
            "Lists are asked for as streams first (`StreamContainers` and its like), then whole.",
            "Streams have no limit of size; runtimes that lack them say so at once.",
        ),
    ),
    "Looking at a run": (
        Difference(
            "`--profile-cpu` writes a file for pstats, `--profile-mem` one for tracemalloc.",
            "Those of crictl are for Go's tools.",
        ),
        Difference(
            "`--enable-tracing=false` means off.",
            "For crictl the option means on, whatever its value.",
        ),
        Difference(
            "Where no collector of traces answers, a warning follows after two seconds.",
            "crictl waits ten.",
        ),
    ),
}
"""Differences of all commands, by subject."""

ADDED: Final = (
    ("`cp`", "See pycrictl-cp(1)."),
    (
        "`image-pull-progress`",
        "See pycrictl-image-pull-progress(1). Where it reads containerd's own API"
        " (`--source containerd`), a registry that refuses an image and one that says that the node"
        " has it already look alike: nothing is downloaded, so a note tells that, and the status is"
        " 0.",
    ),
    (
        "`proxy`",
        "See pycrictl-proxy(1). The proxy answers keepalive pings of its clients itself, so these"
        " prove that the proxy lives, not that the runtime behind it does. A call finds that out.",
    ),
    ("`pull-limiter`", "See pycrictl-pull-limiter(1)."),
)
"""Commands that crictl does not have, and what to know of their limits."""
