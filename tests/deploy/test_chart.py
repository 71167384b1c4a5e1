"""The Helm chart: rendered manifests are current and valid, keep their relations, and bad values are refused."""

from __future__ import annotations

import json
import shutil
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from build_tools.deploy import chart

from treadle.engine.metric_table import METRICS
from treadle.engine.worker_host import CLAIM_WAIT

SETS = sorted(path.stem for path in chart.SETS.glob("*.yaml"))
NEWEST, OLDER = "1.37", ("1.27", "1.29", "1.31", "1.33", "1.35")
OWN_KINDS = {"PodMonitor"}
"""Of the Prometheus operator: not in the schemas of Kubernetes."""
SCHEMA = jsonschema.Draft7Validator(json.loads((chart.CHART / "values.schema.json").read_text()))

REFUSED_BY_SCHEMA: list[dict[str, Any]] = [
    {"store": {"url": "sqlite:////data/treadle.db"}},
    {"settings": {"TREADLE_STORE": "postgresql://u:p@db/x"}},
    {"worker": {"lists": []}},
    {"worker": {"grace": "30s"}},
    {"worker": {"replica": 3}},
    {"wroker": {}},
    {"secrets": [{"variable": "TREADLE_WEBHOOK_SECRET", "value": "plain"}]},
    {"server": {"ingress": {"enabled": True}}},
    {"podMonitor": {"enabled": True}},
]


@cache
def manifests(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((chart.RENDERED / f"{name}.yaml").read_text()) if each]


def find(name: str, kind: str, part: str) -> dict[str, Any]:
    [found] = [
        each
        for each in manifests(name)
        if each["kind"] == kind and each["metadata"]["labels"]["app.kubernetes.io/component"] == part
    ]
    return found


def pods(name: str) -> dict[str, dict[str, Any]]:
    """The pod templates by component."""
    found = [each for each in manifests(name) if each["kind"] in ("Deployment", "Job")]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"] for each in found}


def test_the_rendered_files_are_up_to_date():
    assert chart.DIGEST.read_text().strip() == chart.digest(), "run `python -m build_tools.deploy` (needs Go with Sprig)"


def validate(name: str, *versions: str) -> None:
    """Check all manifests of a set against the schemas; unknown fields are errors."""
    assert manifests(name)
    for each in manifests(name):
        if each["kind"] not in OWN_KINDS:
            for version in versions:
                kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_manifests_are_valid_for_kubernetes(name: str):
    validate(name, NEWEST)


@pytest.mark.soak
@pytest.mark.parametrize("name", SETS)
def test_manifests_are_valid_for_older_versions_of_kubernetes(name: str):
    validate(name, *OLDER)


@pytest.mark.parametrize("name", SETS)
def test_pods_are_confined_and_have_the_time_to_drain(name: str):
    values = chart.values_of(name)
    for part, pod in pods(name).items():
        [container] = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= set(container["resources"])
        names = [each["name"] for each in container["env"]]
        assert ("TREADLE_STORE_FILE" in names) != ("TREADLE_STORE" in names)
        assert len(set(names)) == len(names)
        assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in pod["volumes"]}
        if part in ("worker", "server"):
            grace = values[part]["grace"]
            assert f"--grace={grace}" in container["args"]
            assert pod["terminationGracePeriodSeconds"] >= grace + CLAIM_WAIT + 10
            paths = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")}
            assert paths == {"startup": "/live", "liveness": "/live", "readiness": "/health"}, (
                "a store that is gone needs no restart"
            )
            assert container["livenessProbe"]["httpGet"]["port"] in [each["name"] for each in container["ports"]]
    probe = pods(name)["worker"]["containers"][0]["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= values["worker"]["restartAfter"]


def test_selectors_fit_their_pods():
    for name in SETS:
        labels = [
            each["spec"]["template"]["metadata"]["labels"] for each in manifests(name) if each["kind"] in ("Deployment", "Job")
        ]
        for each in manifests(name):
            spec = each.get("spec", {})
            selector = spec.get("selector", spec.get("podSelector"))
            if selector is not None:
                wanted = selector.get("matchLabels", selector)
                assert any(wanted.items() <= one.items() for one in labels), each["metadata"]["name"]


def test_the_autoscaler_follows_a_metric_that_exists():
    scaler = find("autoscaled", "HorizontalPodAutoscaler", "worker")["spec"]
    worker = find("autoscaled", "Deployment", "worker")
    assert scaler["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert "replicas" not in worker["spec"], "two owners of one number"
    [metric] = [each for each in METRICS if each.name == scaler["metrics"][0]["external"]["metric"]["name"]]
    for each, task_list in zip(scaler["metrics"], ("default", "mail"), strict=True):
        selected = each["external"]["metric"]["selector"]["matchLabels"]
        assert (selected["task_list"], selected["namespace"]) == (task_list, "shop")
        assert set(metric.labels) <= set(selected)
        assert each["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert not [each for each in manifests("default") if each["kind"] == "HorizontalPodAutoscaler"]


def test_migrations_run_before_everything_else():
    job = find("default", "Job", "migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["store", "migrate", "--wait=120"]
    assert "serviceAccountName" not in job["spec"]["template"]["spec"], "the account does not exist before the installation"


@pytest.mark.parametrize("name", SETS)
def test_the_schema_accepts_values_that_work(name: str):
    SCHEMA.validate(chart.values_of(name))


@pytest.mark.parametrize("values", REFUSED_BY_SCHEMA, ids=str)
def test_the_schema_refuses_values_that_cannot_work(values: dict[str, Any]):
    base = chart.values_of("default")
    assert SCHEMA.is_valid(base)
    assert not SCHEMA.is_valid(chart.merged(base, values))


@pytest.mark.soak
def test_rendering_gives_the_kept_files_and_refuses_stores_that_cannot_be_shared():
    if shutil.which("go") is None or not chart.LIBRARIES.is_dir():
        pytest.skip("Go or Sprig is missing: apt-get install golang-go golang-github-masterminds-sprig-dev")
    for name in SETS:
        assert chart.manifests(chart.values_of(name)) == (chart.RENDERED / f"{name}.yaml").read_text()
    refused = {
        "Set store.existingSecret": {},
        "not both": {"store": {"existingSecret": "a", "url": "postgresql://db/x"}},
        "SQLite is one file": {"store": {"url": "sqlite:///treadle.db"}},
        "contains a password": {"store": {"url": "postgresql://u:p@db/x"}},
        "settings.TREADLE_STORE is set by the chart": {"store": {"existingSecret": "a"}, "settings": {"TREADLE_STORE": "x"}},
        "Set server.ingress.host": {"store": {"existingSecret": "a"}, "server": {"ingress": {"enabled": True}}},
        "Set podMonitor.tokenSecret": {"store": {"existingSecret": "a"}, "podMonitor": {"enabled": True}},
    }
    defaults = chart.read(chart.CHART / "values.yaml")
    for message, values in refused.items():
        with pytest.raises(chart.CannotRender, match=message):
            chart.render(chart.merged(defaults, values))
