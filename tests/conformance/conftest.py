"""The endpoint under test, and the table of rules at the end of a run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.node.images import Layout
from tests.node.registry import Registry
from tests.node.throttle import Throttle

from .endpoint import MIB, Endpoint, Settings
from .rules import NOT_IMPLEMENTED

PASS, FAIL, MISSING = "pass", "fail", "not implemented"
_OURS: Final = Settings(limit=2, retry_s=2.0, copies_per_pod=2, copy_size_limit=16 * MIB, url_s=0.0)


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """The endpoint that CONFORMANCE_ENDPOINT names, else our proxy on the throwaway containerd."""
    with ExitStack() as stack:
        address = os.environ.get("CONFORMANCE_ENDPOINT", "")
        if address:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
            registry = Registry(folder / "registry")
            registry.start()
            stack.callback(registry.stop)
            throttle = Throttle(registry.port)
            throttle.start()
            stack.callback(throttle.stop)
            settings = Settings.of_environment()
            made = Endpoint(address, registry, throttle, Layout(folder / "layout"), settings)
        else:
            made = _ours(request, stack)
        stack.callback(made.close)
        yield made


def _ours(request: pytest.FixtureRequest, stack: ExitStack) -> Endpoint:
    """Two proxies in front of the throwaway containerd: one that lets wait, one that refuses."""
    from tests.proxy.program import Program

    lab = request.getfixturevalue("shared_lab")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-")))
    flags = [
        *("--max-parallel-image-pulls", str(_OURS.limit)),
        *("--container-copies-per-pod", str(_OURS.copies_per_pod)),
        *("--container-copy-size-limit", str(_OURS.copy_size_limit)),
    ]
    proxies = []
    for name, more in (
        ("wait", flags),
        ("retry", ["--serialize-image-pulls", "--when-full", "retry", "--retry-interval", "500ms"]),
    ):
        (folder / name).mkdir()
        proxies.append(stack.enter_context(Program(folder / name, lab.node.endpoint, *more)))
    settings = Settings(
        limit=_OURS.limit,
        retry=proxies[1].endpoint,
        retry_s=_OURS.retry_s,
        copies_per_pod=_OURS.copies_per_pod,
        copy_size_limit=_OURS.copy_size_limit,
        url_s=float(os.environ.get("CONFORMANCE_URL_S") or 0),
    )
    return Endpoint(
        proxies[0].endpoint,
        lab.registry,
        lab.throttle,
        lab.layout,
        settings,
        cgroup_parent=f"/{lab.folder.name}",
        is_ours=True,
    )


@pytest.fixture(autouse=True)
def _unhindered(request: pytest.FixtureRequest) -> Iterator[None]:
    """No limit and no fault of one rule meets another."""
    yield
    if "endpoint" in request.fixturenames:
        throttle = request.getfixturevalue("endpoint").throttle
        throttle.heal()
        throttle.limit(None)


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
        made = getattr(item, "funcargs", {}).get("endpoint")
        if NOT_IMPLEMENTED in report.longrepr[2] and isinstance(made, Endpoint) and made.is_ours:
            report.outcome, report.longrepr = "failed", report.longrepr[2]
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the table by rule, where a run of this suite alone asks for it."""
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
