"""The alert rules and the dashboard fit the metrics, and alerts fire when they should.

The rules are evaluated on the metrics of a proxy after an event of each kind.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.telemetry.records import EVENTS, metrics

ROOT = Path(__file__).parents[2]
SHIPPED = {
    service: (
        ROOT / "packaging" / "prometheus" / f"{rules}.rules.yaml",
        ROOT / "packaging" / "grafana" / f"pycrictl-{service}.json",
    )
    for service, rules in (("proxy", "pycrictl"), ("agent", "pycrictl-agent"))
}
RULES, DASHBOARD = SHIPPED["proxy"]


async def scrape() -> str:
    counting = metrics()
    for event in EVENTS:
        counting(event)
    return generate_latest(counting.page.registry).decode()


SCRAPE = asyncio.run(scrape())
PROSE = (ROOT / "man" / "prose" / "pycrictl-proxy.md").read_text()

FAMILIES = {family.name: family for family in text_string_to_metric_families(SCRAPE)}
NAMES = {sample.name for family in FAMILIES.values() for sample in family.samples}
ALERTS = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def series(changes: dict[str, str]) -> list[dict[str, str]]:
    """Return the scrape's series, constant for two hours; ``changes`` has other values, by the
    beginning of a series' name."""
    series = []
    samples = [sample for family in FAMILIES.values() for sample in family.samples]
    for name, labels, value in [
        ("up", {}, 1.0),
        *((sample.name, sample.labels, sample.value) for sample in samples),
    ]:
        text = ",".join(f'{key}="{label}"' for key, label in sorted(labels.items()))
        change = next(
            (new for key, new in changes.items() if f"{name}{{{text}".startswith(key)), ""
        )
        full = ",".join(filter(None, (text, 'instance="n1",job="p"')))
        series.append({"series": f"{name}{{{full}}}", "values": change or f"{value}+0x120"})
    return series


def slow(metric: str, *fast: str) -> dict[str, str]:
    """Return a histogram that gets a value above the buckets ``fast`` each minute."""
    return {
        **{f"{metric}_bucket{{{bucket}": "0x120" for bucket in fast},
        f"{metric}_bucket": "0+1x120",
    }


QUIET = {"pycrictl_upstream_up": "1x120", "process_resident_memory_bytes": "5e7x120"}
"""The series that an event does not set."""

CHANGES: dict[str, dict[str, str]] = {
    "PycrictlProxyGone": {"up{": "1x100 0x20", "pycrictl_": "1x100 _x20", "process_": "1x100 _x20"},
    "PycrictlRuntimeDown": {"pycrictl_upstream_up": "0x120"},
    "PycrictlPullsFail": {
        'pycrictl_pulls_total{code="Unknown",outcome="failed"': "0+1x120",
        'pycrictl_pulls_total{code="OK",outcome="pulled"': "0+0.5x120",
    },
    "PycrictlPullsWaitLong": slow(
        "pycrictl_pull_wait_seconds",
        *(f'le="{seconds}.0"' for seconds in (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360)),
    ),
    "PycrictlPullLineStuck": {"pycrictl_pulls_waiting": "2x120"},
    "PycrictlRefuses": {'pycrictl_refused_total{limit="pull_slots"': "0+1x120"},
    "PycrictlProxyLarge": {"process_resident_memory_bytes": "3e8x120"},
    "PycrictlHandOverFailed": {'pycrictl_handovers_total{end="failed"': "0x100 1x20"},
}


def firing(alerts: list[str]) -> list[dict[str, Any]]:
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    expr = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return [{"expr": expr, "eval_time": "2h", "exp_samples": samples}]


def promtool(*words: str, stdin: str = "") -> None:
    ran = subprocess.run(["promtool", *words], input=stdin, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert list(CHANGES) == ALERTS
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": series({**QUIET, **changes}),
            "promql_expr_test": firing(alerts),
        }
        for name, changes, alerts in [
            ("nothing", {}, []),
            *((name, CHANGES[name], [name]) for name in ALERTS),
        ]
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    promtool("test", "rules", str(file))


TURNED_AWAY = 'pycrictl_agent_turned_away_total{instance="n1"}'
UNAUTHORIZED = 'pycrictl_agent_requests_total{code="401",instance="n1",kind="list"}'


@needs_promtool
@pytest.mark.parametrize(
    ("rates", "fires"),
    [
        ({TURNED_AWAY: 100}, True),
        ({UNAUTHORIZED: 100}, True),
        ({TURNED_AWAY: 40, UNAUTHORIZED: 40}, True),
        ({TURNED_AWAY: 40}, False),
    ],
    ids=["turned away", "unauthorized", "both", "few"],
)
def test_strangers_at_an_agent(rates: dict[str, int], fires: bool, tmp_path: Path) -> None:
    """The series of a code does not exist before the first response with it."""
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": f"0+{rate}x120"} for name, rate in rates.items()
        ],
        "promql_expr_test": firing(["PycrictlAgentStrangers"] if fires else []),
    }
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(SHIPPED["agent"][0])], "tests": [test]}))
    promtool("test", "rules", str(file))


@pytest.mark.parametrize("service", ["proxy", "agent"])
def test_what_is_shipped_names_metrics_that_there_are(service: str) -> None:
    known = NAMES
    if service == "agent":
        page = (ROOT / "man/prose/pycrictl-agent.md").read_text()
        known = set(re.findall(r"`(pycrictl_agent_[a-z_]+)", page))
    for file in SHIPPED[service]:
        used = set(re.findall(r"\b(?:pycrictl|process)_[a-z0-9_]+", file.read_text()))
        assert used
        assert used <= known | {"pycrictl_proxy", "pycrictl_agent"}


@needs_promtool
def test_promtool_accepts_metrics_and_rules() -> None:
    promtool("check", "metrics", stdin=SCRAPE)
    for rules, _ in SHIPPED.values():
        promtool("check", "rules", str(rules))


def test_the_man_page_has_every_metric() -> None:
    section = PROSE.partition("# METRICS")[2].partition("\n# ")[0]
    terms = re.findall(r"`(pycrictl_[a-z_]+)(?:\{([a-z_,]+)\})?`", section)
    documented = {
        name.removesuffix("_total"): set(filter(None, labels.split(","))) for name, labels in terms
    }
    own = {
        name: {key for sample in family.samples for key in sample.labels} - {"le"}
        for name, family in FAMILIES.items()
        if name.startswith("pycrictl_")
    }
    assert documented == own
