"""The endpoint under test, and the table of rules at the end of a run."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.node.images import Layout
from tests.e2e.node.registry import Registry

from .cluster import Cluster, Pod
from .endpoint import MIB, Endpoint, Settings
from .rules import NOT_IMPLEMENTED

PASS, FAIL, MISSING = "pass", "fail", "not implemented"
_OURS: Final = Settings(limit=2, retry_s=2.0, copies_per_pod=2, copy_size_limit=16 * MIB, url_s=0.0)


@pytest.fixture(scope="module")
def endpoint(shared_endpoint: Endpoint) -> Iterator[Endpoint]:
    """The endpoint; what a module has made there is gone when others use the same node."""
    yield shared_endpoint
    shared_endpoint.clean()


@pytest.fixture(scope="session")
def shared_endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """The endpoint that CONFORMANCE_ENDPOINT names, else our proxy on the throwaway containerd."""
    with ExitStack() as stack:
        address = os.environ.get("CONFORMANCE_ENDPOINT", "")
        if address:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
            registry = stack.enter_context(Registry(folder / "registry", in_memory=True))
            settings = Settings.of_environment()
            made = Endpoint(address, registry, Layout(folder / "layout"), settings)
        else:
            made = _ours(request, stack)
        stack.callback(made.channel.close)
        yield made


def _ours(request: pytest.FixtureRequest, stack: ExitStack) -> Endpoint:
    from pycrictl.proxy.server import AGE_S
    from tests.proxy.program import Program

    lab = request.getfixturevalue("shared_lab")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-")))
    flags = [
        "--max-parallel-image-pulls", str(_OURS.limit),
        "--container-copies-per-pod", str(_OURS.copies_per_pod),
        "--container-copy-size-limit", str(_OURS.copy_size_limit),
    ]  # fmt: skip
    proxies = []
    for name, more in (
        ("wait", flags),
        ("retry", ["--max-parallel-image-pulls=1", "--when-full=retry", "--retry-interval=500ms"]),
    ):
        (folder / name).mkdir()
        program = Program(folder / name, lab.node.endpoint, *more, age_s=AGE_S)
        proxies.append(stack.enter_context(program))
    url_s = float(os.environ.get("CONFORMANCE_URL_S") or 0)
    settings = replace(_OURS, retry_endpoint=proxies[1].endpoint, url_s=url_s)
    return Endpoint(
        proxies[0].endpoint,
        lab.registry,
        lab.layout,
        settings,
        cgroup_parent=f"/{lab.folder.name}",
        is_ours=True,
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out rules that CONFORMANCE_RULES does not name, if it names any.

    Of a runtime and a cluster, leave out those of what is not named if the other one is.
    """
    has_runtime, has_cluster = bool(os.environ.get("CONFORMANCE_ENDPOINT")), _names_cluster()
    named = {*os.environ.get("CONFORMANCE_RULES", "").split()}

    def is_left_out(rule: str) -> bool:
        is_of_other = has_runtime != has_cluster and rule.startswith("A") != has_cluster
        return is_of_other or bool(named and not {rule, rule[0]} & named)

    rules = {item: item.get_closest_marker("rule") for item in items}
    left_out = [item for item, rule in rules.items() if rule and is_left_out(rule.args[0])]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _names_cluster() -> bool:
    return any(os.environ.get(f"CONFORMANCE_{name}") for name in ("API", "KUBELET", "KUBELET_OFF"))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The servers that CONFORMANCE_API and CONFORMANCE_KUBELET name, else two of our agents."""
    if _names_cluster():
        yield Cluster.of_environment()
    else:
        with our_cluster(request.getfixturevalue("run_folder")) as made:
            yield made


@contextmanager
def our_cluster(run_folder: Path) -> Iterator[Cluster]:
    from pycrictl.pulls.state import LayerState, Phase, PullState, Sums
    from tests.cluster.agent.standing import standing
    from tests.kube.access import User
    from tests.kube.apiserver import make_node_certificates
    from tests.kube.tokens import Token

    folder = Path(tempfile.mkdtemp(dir=run_folder))
    with standing(make_node_certificates(run_folder), folder) as made:
        on, off = (
            made.start(node, debugs=debugs, spool_dir=str(folder / node))
            for node, debugs in (("n1", True), ("n2", False))
        )
        made.api.tokens["boss"] = Token(User("boss", ("system:masters",)))
        made.api.tokens["eve"] = Token(User("eve"))
        for name, agent, node in (("web", on, "n1"), ("off", off, "n2")):
            pod = made.add_pod(name, node=node, state={"running": {}}, phase="Running")
            side = {**pod["spec"]["containers"][0], "name": "side", "image": "registry.test/side:1"}
            pod["spec"]["containers"].append(side)
            pod["status"]["containerStatuses"].append({**side, "state": {"running": {}}})
            made.api.objects.add("", "pods", pod)
            for container in pod["spec"]["containers"]:
                layer = LayerState(name="sha256:a", phase=Phase.DONE, progress=10, total=10)
                ended = PullState(
                    image=container["image"],
                    layers=(layer,),
                    sums=Sums(progress=10, total=10, done=1, count=1, share=1.0),
                    is_running=False,
                    began_s=1.0,
                    ended_s=time.time() + 3600,
                )
                agent.pulls.keep([ended])
        host = "https://127.0.0.1:"
        root = "/apis/progress.pycrictl.dev/v1alpha1/namespaces/{namespace}/pods/{pod}"
        yield Cluster(
            api=made.api.url,
            kubelet=f"{host}{on.listener.address[1]}",
            kubelet_off=f"{host}{off.listener.address[1]}",
            token="boss",
            stranger="eve",
            pod=Pod("default", "web", "main"),
            pod_off=Pod("default", "off", "main"),
            subresource=f"{root}/imagepullprogress",
            copies=f"{root}/containercopies",
            is_ours=True,
        )


@pytest.fixture(autouse=True)
def _unhindered(request: pytest.FixtureRequest) -> Iterator[None]:
    """No limit and no fault of one rule meets another."""
    yield
    if "endpoint" in request.fixturenames:
        registry = request.getfixturevalue("endpoint").registry
        registry.heal()
        registry.limit(None)


# The table


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the rule of a test in its report; ours may not leave one out."""
    report = yield
    if (marker := item.get_closest_marker("rule")) is None:
        return report
    report.user_properties.append(("rule", marker.args))
    if report.skipped and isinstance(report.longrepr, tuple):
        made = getattr(item, "funcargs", {})
        is_ours = any(made[name].is_ours for name in ("endpoint", "cluster") if name in made)
        if NOT_IMPLEMENTED in report.longrepr[2] and is_ours:
            report.outcome, report.longrepr = "failed", report.longrepr[2]
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if "CONFORMANCE_TABLE" not in os.environ:
        return
    found: dict[str, tuple[str, str, str, str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "rule":
                    number, sentence, source = value
                    before = found.get(number, ("",))[0]
                    outcome = _worst(before, report)
                    if outcome:
                        found[number] = (outcome, sentence, source, _reason(report))
    terminalreporter.section("rules")
    for number, (outcome, sentence, source, reason) in sorted(found.items(), key=_order):
        terminalreporter.line(f"{number:<4} {outcome:<16} {sentence} [{source}]")
        if outcome == MISSING:
            terminalreporter.line(f"     {reason}")
    counts = [
        f"{sum(one[0] == kind for one in found.values())} {kind}" for kind in (PASS, FAIL, MISSING)
    ]
    terminalreporter.line(", ".join(counts))
    if path := os.environ["CONFORMANCE_TABLE"]:
        Path(path).write_text(json.dumps({number: one[0] for number, one in found.items()}))


def _worst(before: str, report: pytest.TestReport) -> str:
    """What to say of a rule that may have several tests, each with several phases."""
    if report.failed or before == FAIL:
        return FAIL
    if report.skipped:
        return before or MISSING
    return PASS if report.when == "call" else before


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return text.partition(NOT_IMPLEMENTED)[2]


def _order(entry: tuple[str, Any]) -> tuple[str, int]:
    return "PCLA".find(entry[0][0]) * "x", int(entry[0][1:])
