"""The page of experts and adapters: a dead expert, a harmful adapter, and a real run."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.experts import build
from pipelines.dashboard.query import Query
from tests.pipelines.dashboard.documents import dashboard, sections, table, words
from tests.pipelines.dashboard.synthetic_runs import write_json, write_run

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
REFUSED = {
    "domain": "books",
    "adapter": None,
    "refused": "it harms new users",
    "verdicts": [
        {"name": "ndcg@10 of domain books", "value": 0.30, "bound": 0.25, "passed": True},
        {"name": "ndcg@10 of user_activity new", "value": -1, "bound": 0, "passed": False},
    ],
    "changes": [
        {"name": name, "num_users": users, "difference": by, "low": by - 0.04, "high": by + 0.04}
        for name, users, by in (("domain books", 200, 0.05), ("user_activity new", 40, -0.08))
    ],
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A run with a dead expert, whose adapter of books is refused."""
    workspace = write_run(tmp_path / "run")
    task = {"auc": 0.8, "predicted": 0.1, "observed": 0.1, "calibration_error": 0.01}
    trunk = {"trunk": "sparse", "flops": 1000, "tasks": {"next": task}, "routing": ROUTING}
    stage = workspace / "train_ranker" / "given"
    write_json(stage / "trunks.json", {"trunks": [trunk]})
    decision = {"num_candidates": 200, "served": True, "reason": "+0.0100 ndcg@10", "metric": "x"}
    write_json(stage / "ranker.json", {**decision, "tasks": ["next"], "tasks_reason": "no values"})
    write_json(workspace / "adapt_domains" / "adapters.json", [REFUSED])
    return workspace


def test_a_dead_expert_is_said_first_and_experts_are_named_by_their_groups(shop):
    page = build(dashboard(shop.parent), Query.of())
    assert page.lead == (
        "3 of 4 experts are used; the busiest has 50.0% of the visits, 2.00 times the mean."
    )
    assert "1 experts have none" in sections(page)["mixture-sparse"].note
    rows = table(page, "experts-sparse").rows
    assert rows[0] == ("expert 1", 0.5, "books (1.6 times)")
    assert rows[3] == ("expert 4", 0.0, "none")


def test_a_harmful_adapter_is_refused_with_the_slice_it_harms(shop):
    page = build(dashboard(shop.parent), Query.of())
    assert "books: refused, so the base answers the domain. it harms new users" in words(page)
    assert [(*row[:4], row[-1]) for row in table(page, "changes").rows] == [
        ("books", "domain books", 200, 0.05, "allowed"),
        ("books", "user activity new", 40, -0.08, "refused"),
    ]
    for file, named in (("adapt_domains/adapters.json", "adapters"), (RANKER, "The ranker")):
        (shop / file).write_text("{")
        page = build(dashboard(shop.parent), Query.of())
        assert any(line.startswith(named) for line in page.notices)


RANKER = "train_ranker/given/ranker.json"
