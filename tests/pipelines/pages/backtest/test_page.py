"""The page of a backtest, by numbers that can be added up by hand."""

import pytest

from pipelines.pages.backtest import backtest_page, state_results
from pipelines.pages.document import Chart, Table
from tests.pipelines.dashboard.documents import block_of, blocks_of
from tests.pipelines.pages.backtest.document import SERVED, document

HOSTILE = '<img src=x onerror="window.broken=1"></script><script>window.broken=1</script>'


def test_the_decision_and_every_number_are_those_of_the_document():
    made = document()
    page = backtest_page(made)
    assert state_results(page) == [
        "NDCG@10 of the served list from 2026-01-01 on, 4 steps: 0.2000 retrained before every "
        "step, 0.1600 (-20.0%) never retrained.",
        "Models never retrained keep 80.0% of the quality of models retrained before every step, "
        "at 0.0% of the training time.",
        "On the last step models 30 days old have lost 50.0% against models retrained before "
        "every step.",
    ]
    lists = {row[:2]: row for row in block_of(page, Table, "lists").rows}
    for one in made["summary"]:
        row = lists[one["policy"], {"ease": "EASE"}.get(one["row"], one["row"])]
        low, high = one["intervals"]["ndcg@10"]
        assert row[2:4] == (one["metrics"]["ndcg@10"], f"{low:.4f} to {high:.4f}")
        assert row[-1] == one["fit_seconds"]
    # Training leaves out the first step, which policies share: 30 s on each of three others.
    full, never = block_of(page, Table, "cost").rows
    assert full[2:] == pytest.approx((90.0, 0.2, 0.19, 0.21, 1.0, 1.0, 0.04 * 40))
    assert never[2:] == pytest.approx((0.0, 0.16, 0.15, 0.17, 0.8, 0.0, None))
    chart = block_of(page, Chart, "policies")
    assert [row[3] for row in chart.rows if row[2] == "never"] == SERVED["never"]


def test_one_policy_has_less_to_say():
    alone = document()
    alone["policies"] = {"never": "left as they are"}
    for part in ("rows", "summary"):
        alone[part] = [one for one in alone[part] if one["policy"] == "never"]
    page = backtest_page(alone)
    (lead,) = state_results(page)
    assert "0.1600 never retrained" in lead
    assert {one.key for one in blocks_of(page.blocks, Chart | Table)} == {"policies", "lists"}
