"""What kubectl is answered that asks a plugin of its own for completions (kubectl 1.26).

It runs ``kubectl_complete-NAME`` with the words typed so far, the last of them being the one to
complete. The answer is a candidate a line, a description after a tab, and a directive in the last
line, as cobra has it. What the cluster has is asked of kubectl, with the options typed so far.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from pycrictl.cli import argv, plugins
from pycrictl.cli.completion.answer import in_time
from pycrictl.cli.declare import Option, parameters, specs
from pycrictl.cli.table import Entry
from pycrictl.errors import PycrictlError
from pycrictl.kubectl.program import Kubectl
from pycrictl.units import escape

LIMIT_S: Final = 5.0
"""Longer than on a node: the API server may be far away."""

NO_FILES: Final = 4
"""cobra's ShellCompDirectiveNoFileComp."""

FILES: Final = 0
"""cobra's ShellCompDirectiveDefault: file names will do."""

NO_SPACE: Final = 2
"""cobra's ShellCompDirectiveNoSpace: the word goes on; without candidates, file names will do."""

_COPY: Final = "container-cp"

_NAMES: Final = (
    "--output=jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.status.phase}{'\\n'}{end}"
)
_CONTAINERS: Final = (
    "--output=jsonpath={range .spec.initContainers[*]}{.name}{'\\t'}{.image}{'\\n'}{end}"
    "{range .spec.containers[*]}{.name}{'\\t'}{.image}{'\\n'}{end}"
)
_QUESTIONS: Final = {
    "--namespace": ("get", "namespaces", _NAMES),
    "--node": ("get", "nodes", "--output=jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}"),
    "--context": ("config", "get-contexts", "--output=name"),
    "--cluster": ("config", "get-clusters"),
    "--user": ("config", "view", "--output=jsonpath={range .users[*]}{.name}{'\\n'}{end}"),
}
_PATHS: Final = (
    *("--kubeconfig", "--kuberc", "--cache-dir", "--certificate-authority", "--client-key"),
    "--client-certificate",
)
_TYPES: Final = ("daemonset", "deployment", "job", "replicaset", "service", "statefulset")


def run(words: Sequence[str]) -> NoReturn:
    """Answer and end the process with status 0; whatever is wrong, there are no candidates.

    Args:
        words: the command line after the plugin's name, up to the word that is completed.
    """
    output = in_time(partial(_write, words), LIMIT_S)
    with suppress(OSError):
        os.write(1, output or f":{NO_FILES}\n".encode())
    os._exit(0)


def _write(words: Sequence[str], pipe: int) -> None:
    entry = plugins.completed()
    if entry is None or not words:
        return
    lines, directive = answer(entry, words)
    with open(pipe, "wb") as file:
        file.write("".join(f"{line}\n" for line in [*lines, f":{directive}"]).encode())


def answer(entry: Entry, words: Sequence[str]) -> tuple[list[str], int]:
    """Return the lines of candidates, and the directive.

    Args:
        entry: the plugin.
        words: as of ``run``.
    """
    *before, word = words
    options = plugins.SPECS | specs(parameters(entry.load()))
    if word.startswith("-") and "=" not in word:
        return [line for line in _flags(entry) if line.startswith(word)], NO_FILES
    option, prefix = _open_option(before, word, options)
    if option in _PATHS:
        return [], FILES
    beginning = word.removeprefix(prefix)
    if option and not prefix:
        before = before[:-1]
    is_place = entry.name == _COPY and not option
    found: list[str] = []
    with suppress(PycrictlError):  # nobody reads errors while typing
        if not is_place:
            found += _candidates(option, before, beginning, options)
        elif not beginning.startswith(("/", ".")) and ":" not in beginning:
            namespace, slash, _ = beginning.rpartition("/")
            where = [f"--namespace={namespace}"] if slash else []
            for line in _candidates("", [*before, *where], "", options):
                pod, tab, about = line.partition("\t")
                found.append(f"{namespace}{slash}{pod}:{tab}{about}")
    if is_place:
        return [line for line in found if line.startswith(beginning)], NO_SPACE
    return [f"{prefix}{line}" for line in found if line.startswith(beginning)], NO_FILES


def _open_option(
    before: Sequence[str], word: str, options: dict[str, argv.OptionSpec]
) -> tuple[str, str]:
    """Return the option whose value is typed, and what stands before it in the same word."""
    if word.startswith("-"):
        name, equals, _ = word.partition("=")
        spec = options.get(name.lstrip("-"))
        return (spec.canonical if spec else name), name + equals
    if before and before[-1].startswith("-") and "=" not in before[-1]:
        spec = options.get(before[-1].lstrip("-"))
        if spec is not None and not spec.is_switch:
            return spec.canonical, ""
    return "", ""


def _flags(entry: Entry) -> Iterator[str]:
    for each in parameters(entry.load()):
        if isinstance(each.declared, Option):
            yield f"{each.declared.canonical}\t{each.declared.help}"
    for name in plugins.HANDED_ON:
        yield f"--{name}\thanded on to kubectl"
    yield "--help\tShow this message and exit."


def _candidates(
    option: str,
    before: Sequence[str],
    beginning: str,
    options: dict[str, argv.OptionSpec],
) -> Iterator[str]:
    """Yield what an option's value can be, or for no option the next argument."""
    line = argv.parse(plugins.apart(before, options), options, interspersed=True)
    theirs, line = plugins.handed_on(line)
    where = [each for each in line.options if each.startswith("--namespace=")]
    kubectl = Kubectl([f"--request-timeout={LIMIT_S:g}s", *theirs], lambda text: None)
    if option == "--progress":
        yield from ("auto", "bar", "json", "none", "plain")
    elif option == "--container" and line.positionals:
        named = [one.partition(":")[0] for one in line.positionals if ":" in one]
        namespace, slash, pod = named[0].rpartition("/") if named else ("", "", line.positionals[0])
        where = [f"--namespace={namespace}"] if slash else where
        yield from _ask(kubectl, "get", "pod", pod, *where, _CONTAINERS)
    elif option in _QUESTIONS:
        yield from _ask(kubectl, *_QUESTIONS[option])
    elif not option and "/" in beginning:
        kind = beginning.partition("/")[0]
        for name in _ask(kubectl, "get", kind, *where, _NAMES):
            yield f"{kind}/{name}"
    elif not option:
        yield from _ask(kubectl, "get", "pods", *where, _NAMES)
        yield from (f"{kind}/" for kind in _TYPES if beginning and kind.startswith(beginning))


def _ask(kubectl: Kubectl, *words: str) -> Iterator[str]:
    for line in kubectl.output(*words).decode(errors="replace").splitlines():
        name, tab, about = line.partition("\t")
        if name and name != "NAME" and escape(name) == name:
            yield f"{name}{tab}{escape(about)}" if about else name
