"""Prometheus rules and the dashboard: derived from the metric table, valid, and naming only what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import promql_parser
import pytest
import yaml
from build_tools.deploy import monitoring

from treadle.engine.metric_table import HISTOGRAM, METRICS

EXISTING = {metric.shown_name for metric in METRICS} | {f"{metric.name}_bucket" for metric in METRICS if metric.kind == HISTOGRAM}
RULES = [rule for group in yaml.safe_load((monitoring.FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
PANELS = json.loads((monitoring.FOLDER / "dashboard.json").read_text())["panels"]
_NAME = re.compile(r"\btreadle[_:][\w:]+")


def names(expression: str) -> set[str]:
    """The metrics and recorded series of an expression."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', "", expression)))


def test_the_files_are_up_to_date():
    assert [path.name for path in monitoring.outdated()] == [], "run `python -m build_tools.deploy`"


def test_every_rule_parses_and_names_only_existing_metrics():
    known = EXISTING | {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        promql_parser.parse(rule["expr"])
        assert names(rule["expr"]), rule
        assert names(rule["expr"]) <= known, rule


def test_every_alert_has_a_summary_and_an_existing_runbook():
    headings = re.findall(r"^## (.+)$", (monitoring.ROOT / monitoring.RUNBOOKS).read_text(), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"]
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert page.endswith(f"/{monitoring.RUNBOOKS}")
        assert anchor in anchors, alert["alert"]


def test_every_metric_has_a_panel_with_a_valid_query():
    shown = set()
    for panel in PANELS:
        [target] = panel["targets"]
        promql_parser.parse(target["expr"].replace("$__rate_interval", "5m"))
        assert names(target["expr"]) <= EXISTING
        shown |= names(target["expr"])
    assert {name.removesuffix("_bucket") for name in shown} == {metric.shown_name for metric in METRICS} - {"treadle_info"}


def test_an_unknown_metric_is_an_error():
    with pytest.raises(KeyError):
        monitoring.expression("rate({nonsense}[5m])")


@pytest.mark.soak
def test_prometheus_accepts_the_rules_and_fires_them():
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    folder = monitoring.FOLDER
    for command in (["check", "rules", str(folder / "rules.yaml")], ["test", "rules", "tests/deploy/rules_test.yaml"]):
        subprocess.run([promtool, *command], cwd=monitoring.ROOT, check=True)
