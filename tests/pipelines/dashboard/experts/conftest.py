"""A run with a dead expert, a harmful adapter and a registered one."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.context import Context
from tests.pipelines.dashboard.documents import dashboard
from tests.pipelines.dashboard.synthetic_runs import write_json, write_run

TASK = {"auc": 0.8, "predicted": 0.1, "observed": 0.1, "calibration_error": 0.01}
ROUTING: dict[str, Any] = {
    "num_experts": 4,
    "top_k": 1,
    "num_candidates": 1000,
    "load": [0.5, 0.3, 0.2, 0.0],
    "entropy": 0.743,
    "max_violation": 1.0,
    "dead_experts": 1,
    "by": [
        {
            "name": "domain",
            "groups": ["books", "films"],
            "load": [[0.8, 0.1, 0.1, 0.0], [0.2, 0.5, 0.3, 0.0]],
        },
        {"name": "activity", "groups": ["0", "over 20"], "load": [[0.5, 0.3, 0.2, 0.0], [0.0] * 4]},
    ],
}
VERDICTS = [
    {"name": "ndcg@10 of domain books", "value": 0.30, "bound": 0.25, "passed": True, "reason": ""},
    {
        "name": "ndcg@10 of user_activity new",
        "value": -0.08,
        "bound": -0.02,
        "passed": False,
        "reason": "change over 40 held-out users from 0.2000",
    },
    {"name": "lists of domain films unchanged", "value": 1.0, "bound": 1.0, "passed": True},
]
CHANGES = [
    {
        "name": "domain books",
        "num_users": 200,
        "before": 0.25,
        "difference": 0.05,
        "low": 0.01,
        "high": 0.09,
    },
    {
        "name": "user_activity new",
        "num_users": 40,
        "before": 0.2,
        "difference": -0.08,
        "low": -0.12,
        "high": -0.04,
    },
]
METRICS = {
    "base": {"ndcg@10": 0.1},
    "base_within_domain": {"ndcg@10": 0.25},
    "adapter_within_domain": {"ndcg@10": 0.30},
    "adapter": {"ndcg@10": 0.29},
}


def write_ranker(stage: Path, routing: dict[str, Any] | None) -> None:
    """Write the measurements of a ranker with, or without, a router."""
    row = {
        "trunk": "sparse" if routing else "dense",
        "flops": 1000,
        "validation": 0.15,
        "ahead": 0.0,
        "standard_error": 0.0,
        "tasks": {"next": TASK},
        "routing": routing,
    }
    write_json(stage / "trunks.json", {"trunks": [row]})
    decision = {
        "num_candidates": 200,
        "served": True,
        "reason": "the ranker's order has +0.0100 ndcg@10 against the blend's",
        "metric": "ndcg@10",
        "tasks": ["next"],
        "tasks_reason": "events have no values",
    }
    write_json(stage / "ranker.json", decision)


@pytest.fixture
def experts_workspace(tmp_path: Path) -> Path:
    """A run whose adapter of books is refused."""
    workspace = write_run(tmp_path / "run")
    write_ranker(workspace / "train_ranker" / "given", ROUTING)
    refused = {"domain": "books", "adapter": None, "refused": "it harms new users"}
    outcome = refused | {"metrics": METRICS, "verdicts": VERDICTS, "changes": CHANGES}
    write_json(workspace / "adapt_domains" / "adapters.json", [outcome])
    return workspace


@pytest.fixture
def experts_context(experts_workspace: Path) -> Context:
    """A dashboard of it."""
    return dashboard(experts_workspace.parent)
