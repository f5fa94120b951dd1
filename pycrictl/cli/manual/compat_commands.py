"""What single commands deliberately do otherwise than those of crictl 1.36."""

from __future__ import annotations

from typing import Final

from pycrictl.cli.manual.compat import Difference

_IDS_WITH_ALL = Difference(
    "`--all` together with IDs is an error.", "crictl ignores the IDs and removes everything."
)
_AT_ONCE = Difference(
    "Eight are removed at once, and the results keep the order of the command line.",
    "crictl starts them all at once, and prints in the order in which they end.",
)
_ALONE = Difference(
    "Where the list fails as a whole, all are measured one by one: those that fail are told in"
    " warnings, and the status is 1.",
    "crictl shows nothing at all.",
)
_NO_SAMPLE = Difference(
    "`-` stands for a share that cannot be told, because the runtime took no new sample.",
    "crictl fails.",
)
_GONE = Difference(
    "Nothing is shown when one of several fails, in no format; what has gone since it was listed is"
    " left out.",
    "crictl shows the first ones as a table, and fails when a listed one has gone.",
)
_STRICT_FILES = Difference(
    "Files are checked before anything is sent. Unknown keys, keys in another case, aliases, values"
    " of the wrong type, keys that are given twice and files beyond 1 MiB are errors that name the"
    " line, where there is one.",
    "crictl ignores what it does not know, and the runtime then does something else.",
)
_SPELLINGS = Difference(
    "Keys may be in camelCase, enums by name.",
    "crictl ignores camelCase, and takes numbers only, though its schema has the names.",
)
_PULLS = Difference(
    "Passwords are asked for on standard error, and may come from a pipe.",
    "crictl writes the question among the results, and needs a terminal.",
)
_NO_PASSWORD = Difference(
    "A password that is missing is an error.", "A pull without one fails later, less clearly."
)
_TRANSPORT = Difference(
    "`--transport` is `auto`: WebSocket first, with an input only if it is the version that can"
    " end one, and then SPDY. `websocket` works on stock runtimes as well, which have version 4;"
    " but not `attach` without `--stdin`, which could end the container.",
    "crictl asks for version 5 only, which they answer with 403.",
)
_TERMINAL = Difference(
    "That `--tty` needs a terminal and the standard input is told before anything is sent.",
    "crictl tells it when the runtime has begun a session.",
)
_MODES = Difference(
    "What a full-screen program has switched in the terminal is switched back at the end.",
    "After the death of the container the cursor could be gone, and the screen the program's.",
)

COMMANDS: Final[dict[str, tuple[Difference, ...]]] = {
    "ps": (
        Difference(
            "`--latest` and `--last` keep to a `--state` that is given.",
            "crictl drops it, and shows containers in another state.",
        ),
        Difference(
            "`--image` and `--resolve-image-path` ask for each image once.",
            "crictl asks twice for each container.",
        ),
        Difference(
            "There are `--watch`, `--sort-by`, `--no-headers` and the formats `wide`,"
            " `jsonpath=` and `custom-columns=`.",
            "They are those of kubectl.",
        ),
    ),
    "inspect": (
        _GONE,
        Difference(
            "Several containers are asked for at once; the output keeps their order.",
            "crictl asks for one after the other.",
        ),
        Difference(
            "An ID that is that of a pod is answered with a hint.", "It is the usual mistake."
        ),
    ),
    "logs": (
        Difference(
            "Names are taken as well as IDs, alone or as `NAMESPACE/POD/NAME`.",
            "They are what one knows.",
        ),
        Difference(
            "Lines in no known format are passed on as they are, with one warning.",
            "crictl drops them, or fails if the first line is one.",
        ),
        Difference(
            "`--tail` goes together with `--stream`, and counts the lines of that output.",
            "crictl refuses it.",
        ),
        Difference(
            "A last line that is not finished is shown, with `--tail` and `--follow` too.",
            "crictl loses it.",
        ),
        Difference(
            "`--follow` notices that a file became shorter.", "crictl shows nothing any more."
        ),
        Difference(
            "`--follow` asks once a second whether the container still runs, and not again for one"
            " that has ended.",
            "crictl asks twice as often, and once more at the end.",
        ),
        Difference(
            "`--previous` finds the log of the attempt before in the folder of this one.",
            "crictl takes a wrong path where a folder has a dot in its name, or crashes.",
        ),
    ),
    "stats": (_NO_SAMPLE, _ALONE),
    "events": (
        Difference(
            "An event that the template does not fit is told on standard error, and the status is"
            " 1 in the end.",
            "crictl writes the failure among the events and exits with 0.",
        ),
    ),
    "create": (_STRICT_FILES, _SPELLINGS, _PULLS, _NO_PASSWORD),
    "create jsonschema": (
        Difference(
            "The schema has all spellings that are accepted, ranges of numbers, names of enums and"
            " what is required.",
            "What it accepts is what is accepted. The one of crictl requires nothing, and accepts"
            " names that crictl then refuses.",
        ),
        Difference(
            "Properties of newer versions of the CRI are in it.", "Runtimes may know them already."
        ),
    ),
    "run": (
        _STRICT_FILES,
        _SPELLINGS,
        Difference(
            "If a step fails or is interrupted, the new pod sandbox is removed again.",
            "crictl leaves it behind.",
        ),
        Difference("A warning about the pod's file comes once.", "crictl reads the file twice."),
        Difference(
            "A pod without `metadata.uid` gets a single one.",
            "crictl makes two, so that container and pod do not belong together.",
        ),
        _PULLS,
        _NO_PASSWORD,
    ),
    "start": (
        Difference(
            "After a failure the hint names what was not tried.", "With crictl one has to guess."
        ),
    ),
    "stop": (
        Difference(
            "After a failure the hint names what was not tried.", "With crictl one has to guess."
        ),
        Difference("A negative `--timeout` is an error.", "No runtime has a meaning for it."),
    ),
    "rm": (
        _IDS_WITH_ALL,
        _AT_ONCE,
        Difference(
            "Log files are removed in one folder that is no link itself, and never what a link"
            " points to. A path that is relative or holds `..` is left alone, with a warning.",
            "The path comes from the runtime; crictl removes whatever is there.",
        ),
    ),
    "update": (
        Difference(
            "An update without a limit is an error, and so is one whose limits are empty texts. A"
            " limit of 0 is sent as crictl sends it: the API does not carry it.",
            "crictl sends an empty update, and prints the ID.",
        ),
        Difference(
            "`--oom-score-adj` is a number from -1000 to 1000.", "crictl takes any text for 0."
        ),
        Difference(
            "`--cpu-count` and `--cpu-maximum` are ignored with a warning.",
            "crictl ignores them without one on Linux.",
        ),
    ),
    "checkpoint": (
        Difference(
            "A warning tells that several checkpoints overwrite one another.",
            "There is one path for all of them.",
        ),
    ),
    "exec": (
        Difference(
            "The status is that of the command; 126 if it could not be started, 127 if it is not"
            " there. Of several containers it is the first that is not 0.",
            "crictl always exits with 1.",
        ),
        _TRANSPORT,
        Difference(
            "`--interactive` with several containers is an error.",
            "They would share one input, each getting a part.",
        ),
        Difference(
            "`--sync` keeps the output of a command that fails, adds no line ends, and writes"
            " standard error to standard error.",
            "crictl drops it, and mixes both in the standard output.",
        ),
        Difference(
            "`--sync` with `--interactive` or `--tty`, and a negative `--timeout`, are errors.",
            "crictl ignores them.",
        ),
        Difference(
            "`--latest` and `--last` keep to a `--state` that is given.",
            "crictl may take a container that has ended.",
        ),
        Difference(
            "A status that the runtime never sends is an error of one line, with status 1.",
            "containerd 1.6 loses it when a command leaves much of its input unread; crictl waits.",
        ),
        Difference(
            "Wrong `--transport` and `--timeout` values are found before any call.",
            "Nothing is to run before it is clear how.",
        ),
        _TERMINAL,
        _MODES,
    ),
    "attach": (
        Difference(
            "The status is that of the container, where the runtime tells it.",
            "crictl exits with 0 or 1.",
        ),
        _TRANSPORT,
        _TERMINAL,
        _MODES,
    ),
    "port-forward": (
        Difference(
            "A connection that the pod refuses ends alone, with a warning.",
            "With crictl it ends all others, and the command.",
        ),
        Difference(
            "Ports are checked before anything is sent.", "crictl opens a session for them first."
        ),
        Difference(
            "`--address` tells where to listen; without it that is localhost, as in crictl.",
            "crictl listens on localhost only.",
        ),
        Difference(
            "`--transport` is `auto`, which is SPDY here; `websocket` works on stock runtimes.",
            "All connections share one stream over SPDY; the WebSocket of crictl is refused.",
        ),
    ),
    "inspectp": (
        _GONE,
        Difference(
            "Several pods are asked for at once; the output keeps their order.",
            "crictl asks for one after the other.",
        ),
        Difference(
            "An ID that is that of a container is answered with a hint.", "It is the usual mistake."
        ),
    ),
    "pods": (
        Difference(
            "There are `--watch`, `--sort-by`, `--no-headers` and the formats `wide`,"
            " `jsonpath=` and `custom-columns=`.",
            "They are those of kubectl.",
        ),
    ),
    "statsp": (_NO_SAMPLE, _ALONE),
    "runp": (_STRICT_FILES, _SPELLINGS),
    "stopp": (
        Difference(
            "After a failure the hint names what was not tried.", "With crictl one has to guess."
        ),
    ),
    "rmp": (_IDS_WITH_ALL, _AT_ONCE),
    "images": (
        Difference(
            "A name selects here: a repository, its last components, or four and more characters"
            " of an ID, with or without a tag.",
            "containerd ignores the filter that crictl sends, and lists everything.",
        ),
        Difference(
            "`before` and `since` take IDs and their beginnings.",
            "crictl compares them with IDs that begin with `sha256:`, and never finds one.",
        ),
        Difference(
            "`reference` searches the repositories of tags as well.",
            "crictl looks at the first digest only, which images may lack.",
        ),
        Difference(
            "The order is the same in each run: by name, and images without one by ID.",
            "That of crictl depends on the order in which the runtime answers.",
        ),
        Difference(
            "There are `--watch`, `--sort-by`, `--no-headers` and the formats `wide`,"
            " `jsonpath=` and `custom-columns=`.",
            "They are those of kubectl.",
        ),
    ),
    "inspecti": (
        _GONE,
        Difference(
            "`--name` and `--filter` select as those of `images` do.",
            "Those of crictl depend on the runtime.",
        ),
    ),
    "pull": (
        Difference(
            "Several images may be named, and progress is shown on a terminal.",
            "crictl pulls one, and shows nothing.",
        ),
        _PULLS,
        _NO_PASSWORD,
        Difference(
            "`--max-parallel-image-pulls` keeps a limit among all pycrictl processes of a node."
            " With it, an image that is present is left as it is.",
            "crictl has no such limit.",
        ),
    ),
    "rmi": (
        Difference(
            "`--prune` keeps pinned images, those of all containers, and the one that pod sandboxes"
            " are made of.",
            "crictl removes the image of the sandboxes where the runtime does not pin it.",
        ),
        Difference(
            "`--prune` takes the IDs of images from the containers, looks up only what is no ID,"
            " and asks the runtime which image pod sandboxes are made of.",
            "crictl looks up the image of each container.",
        ),
        Difference(
            "`--prune` removes nothing if it cannot be told which images are in use.",
            "crictl goes on, and removes images that it could not look up.",
        ),
        Difference("`--all` with `--prune` is an error.", "They mean different things."),
        _AT_ONCE,
    ),
    "config": (
        Difference("`--get` and `--list` never write.", "crictl creates the file."),
        Difference(
            "`--set` writes what is set and leaves all else as it is, comments and empty lines"
            " included.",
            "crictl writes every key, so that `max-retries` becomes 0.",
        ),
        Difference("Values may hold an equals sign.", "crictl refuses them."),
        Difference(
            "An endpoint that is no unix socket is refused.",
            "crictl writes what it then cannot use.",
        ),
        Difference("More than one action is an error.", "crictl takes one of them without a word."),
    ),
    "completion": (
        Difference(
            "The scripts complete all options, their values, IDs, names and paths in containers.",
            "Those of crictl have commands and global options; its zsh script is broken.",
        ),
    ),
    "update-runtime-config": (
        Difference(
            "Without `--pod-cidr`, and with an empty one, it is an error.",
            "crictl sends an empty update.",
        ),
    ),
}
"""Differences by command, without those of ``compat.GENERAL``."""
