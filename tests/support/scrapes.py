"""Scrapes of the proxy's metrics."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.program import Program

LISTEN = ("--metrics-listen", "127.0.0.1:0")


def get(proxy: Program, path: str) -> tuple[int, str]:
    where = re.search(r" metrics listen=(\S+)", proxy.log())
    assert where is not None, proxy.log()
    try:
        with urllib.request.urlopen(f"http://{where[1]}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.read().decode()


class Scrape:
    def __init__(self, proxy: Program) -> None:
        code, self.text = get(proxy, "/metrics")
        assert code == 200
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(self.text):
            assert family.documentation
            for sample in family.samples:
                self.samples[sample.name, frozenset(sample.labels.items())] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 if there is none."""
        return self.samples.get((f"pycrictl_{name}", frozenset(labels.items())), 0.0)
