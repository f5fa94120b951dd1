"""What the pages of single commands tell beyond their help."""

from __future__ import annotations

from typing import Final

from pycrictl.cli.manual.roff import Lines, Part, Terms

_SELECTING: Final = (
    "Names and namespaces are regular expressions that match anywhere: `^web$` is the whole name."
    " Labels are of the form KEY=VALUE, and all must be met."
)
_LIST_FORMATS: Final = Part(
    "OUTPUT",
    (
        Terms(
            (
                ("`table`", "Columns; IDs are cut to 13 characters without `--no-trunc`."),
                ("`wide`", "More columns."),
                ("`json`, `yaml`", "The runtime's answer, as crictl shows it."),
                (
                    "`jsonpath=TEMPLATE`",
                    "Fields of the JSON, such as `jsonpath={.items[*].metadata.name}`, as with"
                    " kubectl.",
                ),
                (
                    "`custom-columns=NAME:PATH,...`",
                    "Columns of one's own, such as `custom-columns=NAME:.metadata.name,ID:.id`.",
                ),
            )
        ),
    ),
)
_TEMPLATES: Final = Part(
    "TEMPLATES",
    (
        "`--output go-template` takes what Go's text/template does, without definitions and calls,"
        " and the functions `json`, `title`, `lower` and `upper`. It is given the document that"
        " `--output json` shows. A key that is not there is an error.",
    ),
)
_SPEC_FILES: Final = Part(
    "CONFIGURATION FILES",
    (
        "The files are JSON or YAML, with the fields of the CRI's PodSandboxConfig and"
        " ContainerConfig. Keys may be in snake_case or camelCase, enums are names or numbers."
        " `jsonschema` prints their schemas, for editors. A pod needs a name and a namespace, and"
        " gets a random uid without one; a container needs a name and an image:",
        Lines(
            (
                "metadata:",
                "  name: web",
                "  namespace: default",
                "log_directory: /var/log/pods/web",
                "linux:",
                "  cgroup_parent: /web",
            )
        ),
        Lines(
            (
                "metadata:",
                "  name: web",
                "image:",
                "  image: docker.io/library/busybox:1.36",
                "command: [sleep, infinity]",
                "log_path: web.log",
            )
        ),
    ),
)
_TRANSPORTS: Final = Part(
    "TRANSPORTS",
    (
        "The runtime answers with a URL, which is dialled from here. `auto` tries WebSocket first"
        " and then SPDY. Only the newest WebSocket protocol can tell that the input has ended, so"
        " with an input no other is tried by itself. Without `--tls-ca` certificates are not"
        " verified.",
    ),
)

_FORWARD_TRANSPORTS: Final = Part(
    "TRANSPORTS",
    (
        "The runtime answers with a URL, which is dialled from here, anew for each connection."
        " `auto` is SPDY: over WebSocket neither end can tell the other that it sends no more and"
        " still get an answer. Over SPDY the program also ends when the runtime does. Without"
        " `--tls-ca` certificates are not verified.",
    ),
)

PARTS: Final[dict[str, tuple[Part, ...]]] = {
    "ps": (Part("SELECTION", (_SELECTING,)), _LIST_FORMATS),
    "pods": (Part("SELECTION", (_SELECTING,)), _LIST_FORMATS),
    "images": (
        Part(
            "SELECTION",
            (
                "A name is a repository or its last components, with or without a tag: `busybox`"
                " selects docker.io/library/busybox as well. Four and more characters may be the"
                " beginning of an ID.",
                "The CRI does not tell when an image was made. `before=IMAGE` is therefore what"
                " stands behind that image in the list, and `since=IMAGE` what stands in front of"
                " it, as with crictl.",
            ),
        ),
        _LIST_FORMATS,
    ),
    "inspect": (Part("SELECTION", (_SELECTING,)), _TEMPLATES),
    "inspectp": (Part("SELECTION", (_SELECTING,)), _TEMPLATES),
    "inspecti": (_TEMPLATES,),
    "imagefsinfo": (_TEMPLATES,),
    "info": (_TEMPLATES,),
    "events": (_TEMPLATES,),
    "create": (_SPEC_FILES,),
    "run": (_SPEC_FILES,),
    "runp": (_SPEC_FILES,),
    "exec": (
        Part("SELECTION", (_SELECTING,)),
        _TRANSPORTS,
        Part(
            "INPUT",
            (
                "containerd 1.6 ends the input of a command that has closed one of its outputs;"
                " what it has not read by then is lost, with status 0. In `sh -c 'cat >FILE'` the"
                " shell is replaced by cat, whose standard output is the file: write"
                " `sh -c 'cat >FILE; true'`, or copy with `pycrictl cp`.",
            ),
        ),
    ),
    "attach": (
        _TRANSPORTS,
        Part(
            "INPUT",
            (
                "Without `--stdin` the older WebSocket protocols are not used: with them, the"
                " runtime takes the standard input of the container to have ended, which can end"
                " the container.",
            ),
        ),
    ),
    "port-forward": (_FORWARD_TRANSPORTS,),
    "cp": (
        Part(
            "WHERE A COPY GOES",
            (
                "As with docker cp. A local path with a colon in its name is written as"
                " `./NAME`; what begins with a slash or a dot is always local.",
                Terms(
                    (
                        (
                            "A file",
                            "is made or replaced at the destination; into a directory it goes under"
                            " its own name.",
                        ),
                        (
                            "A directory",
                            "becomes the destination if that does not exist, else it goes into it"
                            " under its own name.",
                        ),
                        (
                            "`DIR/.`, or an archive",
                            "What is in it goes into the directory that is the destination.",
                        ),
                    )
                ),
                "A link at the destination is replaced and never written through, but for one to a"
                " directory. A device, a pipe or a socket is never replaced, nor is a link to one"
                " that is the destination itself. Devices, sockets and links that lead out of the"
                " tree are left out of the copy, with a warning and the status 1.",
            ),
        ),
        Part(
            "METHODS",
            (
                Terms(
                    (
                        (
                            "`rpc`",
                            "The calls CopyToContainer and CopyFromContainer of the runtime or of"
                            " the proxy, see pycrictl-proxy(1).",
                        ),
                        (
                            "`node`",
                            "Through the root directory of the container's first process. Nothing"
                            " runs in the container, so it needs neither a shell nor tar; but"
                            " pycrictl must be root on the same machine.",
                        ),
                        (
                            "`exec`",
                            "By tar in the container. If a copy out of it is broken off, the"
                            " runtime may leave that tar waiting there, as nothing tells it that"
                            " nobody reads.",
                        ),
                        ("`auto`", "The first of them that serves; `--debug` tells which."),
                    )
                ),
            ),
        ),
    ),
    "image-pull-progress": (
        Part(
            "SOURCES",
            (
                Terms(
                    (
                        (
                            "`cri`",
                            "The call ImagePullProgress of KEP-5334. The proxy has it, see"
                            " pycrictl-proxy(1); no released runtime does.",
                        ),
                        (
                            "`containerd`",
                            "containerd's own API on the same socket. It tells all pulls of the"
                            " node, but not whose they are. A registry that refuses an image looks"
                            " like one that says that the node has it: nothing is downloaded, and a"
                            " note tells that.",
                        ),
                        ("`auto`", "The first of them that is there."),
                    )
                ),
            ),
        ),
        Part(
            "OUTPUT",
            (
                Terms(
                    (
                        ("`bar`", "A bar for each layer; the default on a terminal."),
                        (
                            "`plain`",
                            "A line for each change of phase, and one every ten seconds; the"
                            " default elsewhere.",
                        ),
                        (
                            "`json`",
                            "An object a line, on standard output, with the keys of KEP-5334"
                            " (`image`, `layer`, `progress`, `total`, `error`) and more.",
                        ),
                        ("`none`", "Nothing but the exit status."),
                    )
                ),
            ),
        ),
    ),
    "proxy": (
        Part(
            "LIMIT",
            (
                "A present image takes no slot, and its pull is forwarded all the same, so that"
                " credentials are checked. Equal pulls (same image, credentials, runtime handler"
                " and namespace) are made once. Whoever finds no free slot waits in line, first"
                " come, first served.",
                "On SIGTERM no new pull is taken, and those that run may finish within"
                " `--drain-timeout`.",
            ),
        ),
        Part(
            "KEEPALIVE",
            (
                "The proxy answers keepalive pings of its clients itself. They prove that the proxy"
                " lives; whether the runtime does, a call tells.",
            ),
        ),
    ),
}
"""Sections by command, behind the options."""

EXIT_STATUS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "exec": (
        ("N", "The command's own status; of several containers the first that is not 0."),
        (
            "1",
            "An error: the command did not come to run, or the runtime told no status, and whether"
            " it succeeded is unknown.",
        ),
        ("126, 127", "The command could not be started, or is not in the container."),
        ("130", "Ctrl-C, without a terminal."),
    ),
    "attach": (
        ("N", "The status of the container, where the runtime tells it."),
        ("1", "The container could not be attached to, or the stream broke."),
        ("130", "Ctrl-C, without a terminal."),
    ),
    "cp": (
        ("0", "All is copied."),
        ("1", "Something was left out, or nothing was copied."),
        (
            "130",
            "Ctrl-C; the destination is as it was, unless a warning says that this is not known or"
            " that the copy is incomplete. Once everything is in its place, Ctrl-C comes too late,"
            " and the status is 0.",
        ),
    ),
    "image-pull-progress": (
        ("0", "All pulls are done, or there was none."),
        ("1", "A pull failed, or they could not be watched."),
        ("130", "Ctrl-C; the pulls go on."),
    ),
    "pull": (
        ("0", "All images are there."),
        ("1", "One of them could not be pulled; the others are there."),
        ("130", "Ctrl-C; the pull was cancelled."),
    ),
    "logs": (
        ("0", "All is shown, or Ctrl-C ended `--follow`."),
        ("1", "There is no such container or no log."),
    ),
    "port-forward": (
        ("0", "Ctrl-C."),
        ("1", "No port could be listened on, or the connection to the pod was lost."),
    ),
    "events": (
        ("0", "The runtime ended the stream."),
        ("1", "The runtime has no events, or a template did not fit one."),
        ("130", "Ctrl-C."),
    ),
    "proxy": (
        ("0", "It was ended by SIGTERM or Ctrl-C."),
        ("1", "It could not start; a line tells why."),
    ),
}
"""What the exit status of single commands means; of all others 0 is success and 1 an error."""

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "ps": (
        ("The newest container of a pod, whatever its state", "pycrictl ps -a -l --name '^web$'"),
        ("Names alone, sorted", "pycrictl ps --sort-by .metadata.name -o jsonpath={..name}"),
    ),
    "images": (
        ("The largest images last", "pycrictl images --sort-by .size"),
        ("Images without a tag, as IDs", "pycrictl images -q --filter dangling=true"),
    ),
    "exec": (
        ("A shell", "pycrictl exec -it --name web sh"),
        (
            "The same command in all containers with a label",
            "pycrictl exec --label app=web -- cat /etc/passwd",
        ),
    ),
    "cp": (
        ("A file into a container", "pycrictl cp ./pod.yaml web:/tmp/"),
        ("A directory as an archive", "pycrictl cp web:/etc/nginx - | tar -t"),
    ),
    "logs": (("The errors of the last ten minutes", "pycrictl logs --since 10m -s stderr web"),),
    "pull": (
        (
            "At most two pulls at once, of all pycrictl processes",
            "pycrictl pull --max-parallel-image-pulls 2 docker.io/library/busybox:1.36",
        ),
        (
            "With a password from a file",
            "pycrictl pull -u reader registry.example/private/app:1 < password",
        ),
    ),
    "image-pull-progress": (
        ("All pulls of the node, until Ctrl-C", "pycrictl image-pull-progress --follow"),
        (
            "Failures only, for a script",
            "pycrictl image-pull-progress --progress json | jq 'select(.phase == \"failed\")'",
        ),
    ),
    "config": (
        ("Another endpoint", "pycrictl config --set runtime-endpoint=unix:///run/crio/crio.sock"),
        ("What the file says", "pycrictl config --list"),
    ),
    "pull-limiter": (("Two pulls at once from now on", "pycrictl pull-limiter set 2"),),
    "rmi": (("One image, with all its tags", "pycrictl rmi docker.io/library/busybox:1.36"),),
    "create": (
        (
            "What may be in the file of a container",
            "pycrictl create jsonschema -c | jq '.[\"$defs\"].ContainerConfig.properties | keys'",
        ),
    ),
}
"""More examples of single commands: what each does, and its command line."""
