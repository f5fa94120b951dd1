"""Our proxy, which keeps all rules, with a fault planted in it.

A fault is a change of one function of the proxy, or of one of its options.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.node.lab import Lab
from tests.proxy.program import Program

LIMIT, COPIES_PER_POD, SIZE_LIMIT, RETRY_S = 2, 2, 1 << 20, 0.6
OPTIONS: Final = {
    "--max-parallel-image-pulls": str(LIMIT),
    "--container-copies-per-pod": str(COPIES_PER_POD),
    "--container-copy-size-limit": str(SIZE_LIMIT),
}


class Fault(NamedTuple):
    """A fault of a proxy: Python that replaces ``old`` by ``new``, or an option with a value of 0.

    ``place`` is the attribute to replace, as MODULE:NAME below ``pycrictl.proxy``.
    """

    rule: str
    place: str = ""
    new: str = ""
    option: str = ""


def _messages(pattern: str, instead: str) -> tuple[str, str]:
    """Return the place and the Python that put a changed message before each one of a stream."""
    changed = f"re.sub(r'{pattern}', r'{instead}', text)"
    both = f"[one for text in old(self, pulls) for one in ({changed}, text)]"
    return "pulls.progress_streams:MessageWriter.changes", f"lambda self, pulls: {both}"


_TARGET: Final = "runtime_lookup:RuntimeLookup.target"

FAULTS: Final = {
    "a call without an ID is answered": Fault(
        "P3", _TARGET, "lambda self, pod, container: old(self, pod or container or '*', '')"
    ),
    "an unknown pod is an internal error": Fault("P4", "runtime_lookup:NOT_FOUND", "13"),
    "a container need not belong to the pod": Fault(
        "P6", _TARGET, "lambda self, pod, container: old(self, '' if container else pod, container)"
    ),
    "tokens are counted": Fault(
        "P8",
        "serve.stream_server:secrets.token_urlsafe",
        "lambda size: f'stream{next(count)}'",
    ),
    "a URL may be used again": Fault(
        "P9",
        "serve.stream_server:Tokens.redeem",
        "lambda self, *words, **more: next(reversed(self._grants.values())).payload",
    ),
    "an error is null": Fault("P14", *_messages('"total"', '"error":null,"total"')),
    "progress falls": Fault("P18", *_messages('"progress":[0-9]+', '"progress":1')),
    "the stream ends with 1001": Fault(
        "P20", "serve.stream_server:CloseCode", "SimpleNamespace(NORMAL_CLOSURE=old.GOING_AWAY)"
    ),
    "a failure has no error": Fault(
        "P29", "pulls.progress_streams:PullState", "lambda **given: old(**{**given, 'error': ''})"
    ),
    "pods see each other": Fault(
        "P30",
        "pulls.progress_streams:Reporter.pulls",
        "lambda self, target, **more: old(self, target._replace(pod=None), **more)",
    ),
    "nothing is an error": Fault(
        "P31", "pulls.progress_streams:NOTHING", """'{"progress":0,"total":0,"error":"nothing"}'"""
    ),
    "a relative path is taken": Fault("C2", "copy_calls:check_container_path", "lambda path: None"),
    "copies are not counted": Fault("C31", option="--container-copies-per-pod"),
    "size is not limited": Fault("C33", option="--container-copy-size-limit"),
    "pulls are not limited": Fault("L1", option="--max-parallel-image-pulls"),
    "the last comes first": Fault(
        "L2",
        "pulls.pull_calls:QueuedPull.rank",
        "property(lambda self: (-self.asked, -self.number))",
    ),
    "a present image takes a slot": Fault(
        "L4", "runtime_lookup:RuntimeLookup.is_present", "lambda self, image: sleep(0, False)"
    ),
    "places begin at 0": Fault("L8", *_messages('"queue_position":1', '"queue_position":0')),
    "the error has another name": Fault(
        "L9",
        "pulls.queue:PullQueue.refuse",
        "lambda self, call, code, text, now: old(self, call, code, 'too many', now=now)",
    ),
}

_PLANT: Final = """
import importlib, itertools, re
from asyncio import sleep
from types import SimpleNamespace
count = itertools.count()
owner = importlib.import_module("pycrictl.proxy.{module}")
*names, name = "{names}".split(".")
for part in names:
    owner = getattr(owner, part)
old = getattr(owner, name)
setattr(owner, name, {new})
"""


@contextmanager
def serving_endpoint(lab: Lab, folder: Path, fault: Fault) -> Iterator[dict[str, str]]:
    """Serve a proxy with a fault; yield the suite's settings for it.

    Where the fault is in what a full one answers, there is a second one that refuses pulls.
    """
    module, _, names = fault.place.partition(":")
    code = _PLANT.format(module=module, names=names, new=fault.new) if module else ""
    wait = {**OPTIONS, **({fault.option: "0"} if fault.option else {})}
    strict = {"--max-parallel-image-pulls": "1", "--when-full": "retry"}
    strict |= {"--retry-interval": f"{RETRY_S / 3:g}s"}
    with ExitStack() as stack:
        endpoints = {"wait": "", "strict": ""}
        for name, given in (("wait", wait), ("strict", strict)):
            if name == "strict" and fault.rule != "L9":
                continue
            (folder / name).mkdir()
            words = [word for pair in given.items() for word in pair]
            program = Program(folder / name, lab.node.endpoint, *words, code=code)
            endpoints[name] = stack.enter_context(program).endpoint
        yield {
            "CONFORMANCE_ENDPOINT": endpoints["wait"],
            "CONFORMANCE_RETRY_ENDPOINT": endpoints["strict"],
            "CONFORMANCE_RETRY_S": str(RETRY_S),
            "CONFORMANCE_LIMIT": str(LIMIT),
            "CONFORMANCE_COPIES_PER_POD": str(COPIES_PER_POD),
            "CONFORMANCE_COPY_SIZE_LIMIT": str(SIZE_LIMIT),
            "CONFORMANCE_PACE": "0.3",
        }
