"""Dashboard and alerts: every metric, label and value that they name is one the server has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize(("name", "label", "operator", "value"), sorted(set(matched())))
def test_every_value_selected_is_one_the_metric_has(labels, name, label, operator, value) -> None:
    known = labels[name][label]
    if operator in ("=~", "!~"):
        for one in value.split("|"):
            assert any(re.fullmatch(one, candidate) for candidate in known), (one, known)
    else:
        assert value in known


def test_every_alert_is_explained_to_the_operator() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^### (Recsys\w+)", page, re.MULTILINE))
    assert explained == {rule["alert"] for rule in RULES}
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning"}
    assert all(rule["annotations"]["summary"] for rule in RULES)
