"""The endpoint under test, and the table of rules at the end of a run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.node.images import Layout
from tests.e2e.node.registry import Registry

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
    """Leave out rules that CONFORMANCE_RULES does not name, if it names any."""
    named = {*os.environ.get("CONFORMANCE_RULES", "").split()}

    def is_left_out(rule: str) -> bool:
        return bool(named and not {rule, rule[0]} & named)

    rules = {item: item.get_closest_marker("rule") for item in items}
    left_out = [item for item, rule in rules.items() if rule and is_left_out(rule.args[0])]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


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
        is_ours = "endpoint" in made and made["endpoint"].is_ours
        if NOT_IMPLEMENTED in report.longrepr[2] and is_ours:
            report.outcome, report.longrepr = "failed", report.longrepr[2]
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if "CONFORMANCE_TABLE" not in os.environ:
        return
    results: dict[str, tuple[str, str, str, str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "rule":
                    number, sentence, source = value
                    before = results.get(number, ("",))[0]
                    outcome = _worst(before, report)
                    if outcome:
                        results[number] = (outcome, sentence, source, _reason(report))
    terminalreporter.section("rules")
    for number, (outcome, sentence, source, reason) in sorted(results.items(), key=_order):
        terminalreporter.line(f"{number:<4} {outcome:<16} {sentence} [{source}]")
        if outcome == MISSING:
            terminalreporter.line(f"     {reason}")
    counts = [
        f"{sum(result[0] == kind for result in results.values())} {kind}"
        for kind in (PASS, FAIL, MISSING)
    ]
    terminalreporter.line(", ".join(counts))
    if path := os.environ["CONFORMANCE_TABLE"]:
        Path(path).write_text(json.dumps({number: result[0] for number, result in results.items()}))


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
