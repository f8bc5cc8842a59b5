"""The Grafana dashboard and the alert rules ask for metrics that there are, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
ALERTS, DASHBOARD = MONITORING / "alerts.yaml", MONITORING / "dashboard.json"
NAME = re.compile(r"\b(?:nodeagent|hami)_[a-z0-9_]+")
HEADINGS = ("Of the node", "Of each device", "Of each card", "Of each lease")
NOT_SERVED = {"nodeagent_up"}  # of the textfile


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])


def test_every_metric_that_is_asked_for_exists(page: Callable[[str], Any]) -> None:
    """A name in a panel or rule is served, as docs/metrics.md, which a test holds to the agent, says."""
    known = {name for heading in HEADINGS for name in page("metrics.md").rows(heading)}
    histograms = {f"{name}_bucket" for name in known if name.endswith("_seconds")}
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert asked and asked <= known | histograms | NOT_SERVED


def test_every_alert_says_what_to_do(page: Callable[[str], Any]) -> None:
    """Each rule has a severity, a time, and words; docs/metrics.md has a row for each, and no other."""
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
    told = page("metrics.md").rows("Dashboard and alerts")
    assert [rule["alert"] for rule in rules()] == list(told)


def test_each_trouble_has_its_alert() -> None:
    """Leak, foreign use, quarantine, a sick device, over-use and drift are alarms."""
    wanted = {"GpuLeak", "GpuForeignUse", "GpuQuarantine", "GpuUnhealthy", "GpuOverUse", "GpuLinkDegraded"}
    assert wanted <= {rule["alert"] for rule in rules()}


def test_the_dashboard_can_be_imported() -> None:
    """Panels have numbers of their own, places that do not overlap, and the data source that is chosen."""
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found]
    assert len(set(places)) == len(found)
    assert {panel["datasource"]["uid"] for panel in found} == {"${source}"}
    assert all(panel["targets"] and panel["title"] for panel in found)


@pytest.mark.slow
def test_prometheus_takes_the_rules() -> None:
    """promtool, of Debian's package prometheus, finds nothing wrong with them."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    subprocess.run([promtool, "check", "rules", str(ALERTS)], check=True)
