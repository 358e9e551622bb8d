"""Dashboard and alerts: every metric, label and value that they name is one the server has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving.metrics import ServerMetrics
from serving.routes import PATHS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "recsys.json").read_text(encoding="utf-8"))
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
METRIC = re.compile(r"\b(?:recsys|process)_[a-z_]+")
SELECTOR = re.compile(r"\b((?:recsys|process)_[a-z_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds."""


def in_dashboard() -> list[str]:
    panels = [target["expr"] for one in DASHBOARD["panels"] for target in one.get("targets", [])]
    return panels + [
        variable["query"]["query"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ]


EXPRESSIONS = [*in_dashboard(), *(rule["expr"] for rule in RULES)]


@pytest.fixture(scope="module")
def labels() -> dict[str, dict[str, set[str]]]:
    """Values of each label of each metric of a server that has answered requests."""
    metrics = ServerMetrics()
    metrics.bundle("v1", "aa", 1.0)
    for route in PATHS:
        for status in (200, 500, 503):
            metrics.observe_request(route, status, 0.001)
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    return found


def matched() -> Iterator[tuple[str, str, str, str]]:
    for expression in EXPRESSIONS:
        for name, inside in SELECTOR.findall(expression):
            for label, operator, value in MATCHER.findall(inside):
                if label not in TARGET_LABELS:
                    yield name, label, operator, value


def test_every_metric_named_is_one_the_server_has(labels) -> None:
    assert len(EXPRESSIONS) > 40
    named = {name for expression in EXPRESSIONS for name in METRIC.findall(expression)}
    assert named - labels.keys() == set()


def test_the_dashboard_shows_every_metric_the_server_has(labels) -> None:
    shown = {name for expression in in_dashboard() for name in METRIC.findall(expression)}
    own = {re.sub(r"_(bucket|count|sum)$", "", name) for name in labels if "recsys_" in name}
    assert own - {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown} == set()


@pytest.mark.parametrize(("name", "label", "operator", "value"), sorted(set(matched())))
def test_every_value_selected_is_one_the_metric_has(labels, name, label, operator, value) -> None:
    known = labels[name][label]
    if operator in ("=~", "!~"):
        for one in value.split("|"):
            assert any(re.fullmatch(one, candidate) for candidate in known), (one, known)
    else:
        assert value in known


def test_lists_are_grouped_by_labels_that_there_are(labels) -> None:
    every = {label for values in labels.values() for label in values} | TARGET_LABELS
    for expression in EXPRESSIONS:
        for group in GROUPED.findall(expression):
            assert {label.strip() for label in group.split(",") if label.strip()} <= every


def test_panels_are_told_apart_and_use_the_chosen_data_source() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    sources = {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"}
    assert sources == {"${datasource}"}


def test_every_alert_is_explained_to_the_operator() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^### (Recsys\w+)", page, re.MULTILINE))
    assert explained == {rule["alert"] for rule in RULES}
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning"}
    assert all(rule["annotations"]["summary"] for rule in RULES)


def test_prometheus_finds_its_rules_and_the_server() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    assert [(DEPLOY / "prometheus" / name).exists() for name in config["rule_files"]] == [True]
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    name, port = target.split(":")
    assert services[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert job["job_name"] == "recsys"
    if promtool := shutil.which("promtool"):
        command = [promtool, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
