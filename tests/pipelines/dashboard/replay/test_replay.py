"""The page Replay: which backtest is shown and what its numbers are, by known ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.replay import backtests, build, exports
from pipelines.pages.backtest import backtest_page
from pipelines.pages.backtest_numbers import ReplayResults, measure_ageing
from pipelines.pages.document import Chart, Page, Table
from tests.pipelines.dashboard.documents import block_of, control_of, dashboard, words

METRICS = ("ndcg@10", "recall@10")
NUM_STEPS = 5
HOSTILE = "<img src=x onerror=alert(1)>"


def values(value: float) -> dict[str, float]:
    return dict.fromkeys(METRICS, value)


def row(policy: str, name: str, step: int, value: float, seconds: float = 0.0) -> dict[str, Any]:
    return {
        "policy": policy,
        "row": name,
        "step": step,
        "metrics": values(value),
        "standard_errors": values(0.002),
        "fit_seconds": seconds,
        "rank_seconds": 0.1,
        "model_age_days": 7.0 * (step - 1) if policy == "never" else 0.0,
    }


def handmade() -> dict[str, Any]:
    """Fresh models earn .2 on every step; stale ones lose a hundredth of it a day."""
    rows, slices = [], []
    numbers = range(1, NUM_STEPS + 1)
    for step in numbers:
        stale = 0.2 * (1 - 0.01 * 7 * (step - 1))
        rows += [
            row("full", "served", step, 0.2),
            row("full", "sequence", step, 0.19, 100.0),
            row("incremental", "served", step, 0.19),
            row("incremental", "sequence", step, 0.18, 10.0),
            row("never", "served", step, stale),
            row("never", "sequence", step, stale - 0.01),
            row("peer", HOSTILE, step, 0.1 + 0.01 * (step % 2)),
        ]
        for policy, value in (("full", 0.1), ("incremental", 0.1), ("never", 0.05)):
            for slice_, share in (("new users", 10), ("known users", 30)):
                slices.append(
                    {
                        "policy": policy,
                        "row": "served",
                        "step": step,
                        "slice": slice_,
                        "num_queries": share * step,
                        "metrics": values(value * step),
                    }
                )
    rows.append({"policy": "peer", "row": "als", "step": 1, "error": "Traceback\nout of memory"})
    return {**about(numbers), "rows": rows, "slices": slices}


def about(numbers: range) -> dict[str, Any]:
    """Describe the steps, and how far the served list is ahead."""
    return {
        "data_set": "shop",
        "data_digest": "d1",
        "config_digest": "c1",
        "seed": 0,
        "metric": "ndcg@10",
        "policies": {"full": "a", "incremental": "b", "never": "c"},
        "steps": [
            {
                "number": step,
                "begin": f"2024-10-{step:02d} 00:00",
                "end": f"2024-10-{step + 1:02d} 00:00",
                "num_queries": 40,
                "num_users": 20,
                "num_new_users": 5,
                "num_new_items": 2,
            }
            for step in numbers
        ],
        "summary": [],
        "leads": [
            {
                "policy": "full",
                "member": "sequence",
                "difference": 0.01,
                "standard_error": 0.001,
                "steps": [
                    {"step": s, "member": "sequence", "difference": d, "standard_error": 0.001}
                    for s, d in zip(numbers, (0.02, 0.01, 0.01, -0.01, 0.02), strict=True)
                ],
            }
        ],
    }


def put(folder: Path, document: dict[str, Any] | None) -> Path:
    (folder / "steps").mkdir(parents=True)
    (folder / "replay.json").write_text("{}", encoding="utf-8")
    if document is not None:
        (folder / "backtest.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


@pytest.fixture
def page() -> Page:
    return backtest_page(handmade())


def test_stale_models_lose_a_hundredth_a_day(page: Page) -> None:
    ageing = measure_ageing(ReplayResults(handmade()))
    assert ageing is not None
    assert {name: round(share, 6) for name, _, share in ageing.losses()} == {
        "a day": 0.01,
        "a week": 0.07,
    }
    assert ageing.oldest == 28.0
    assert ageing.days_to_lose(0.1) == pytest.approx(10.0)
    assert ageing.days_to_lose(0.5) is None
    said = words(page)
    assert "a day 1.0%, a week 7.0%" in said
    assert "the loss reaches 10% after 10 days" in said


def test_quality_stands_beside_cost(page: Page) -> None:
    rows = {row[0]: row for row in block_of(page, Table, "cost").rows}
    # Four steps behind the first one.
    assert [rows[name][2] for name in ("full", "incremental", "never")] == [400.0, 40.0, 0.0]
    assert rows["incremental"][6:8] == pytest.approx((0.95, 0.1))
    # .2 against a mean of .172 without retraining, in a ninth of an hour.
    assert rows["full"][8] == pytest.approx((0.2 - 0.172) * 9)
    assert rows["never"][8] is None
    assert page.lead.startswith("NDCG@10 of the served list from 2024-10-01 on, 5 steps: 0.2000")
    assert "0.1900 (-5.0%) updated before every step" in page.lead


def test_slices_weigh_steps_by_their_queries(page: Page) -> None:
    rows = {row[0]: row for row in block_of(page, Table, "slices").rows}
    # (1 + 4 + 9 + 16 + 25) / (1 + 2 + 3 + 4 + 5) = 11 / 3 times the first step's value.
    assert rows["new users"][1:3] == pytest.approx((150, 0.1 * 11 / 3))
    assert rows["new users"][4] == pytest.approx(0.05 * 11 / 3)


def test_peers_are_paired_by_step(page: Page) -> None:
    (peer,) = block_of(page, Chart, "peers").rows
    # .1 on even steps, .11 on odd ones: a mean of .106.
    assert peer[0] == HOSTILE
    assert peer[2] == pytest.approx(0.2 - 0.106)
    assert 0.09 <= float(str(peer[3])) <= 0.094 <= float(str(peer[4])) <= 0.1
    said = words(page)
    assert "als failed on step 1: out of memory" in said
    assert "on 1 of 5 steps a source was above it" in said


def test_what_is_not_finished_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "recsys backtest" in words(build(dashboard(tmp_path), Query.of()))
    begun = put(tmp_path / "run" / "backtest", None)
    page = build(dashboard(tmp_path), Query.of())
    assert page.lead == "run/backtest has no results yet."
    assert "recsys backtest" in words(page)
    for text, said in (('{"metric": "ndcg@10"}', "another version"), ('{"metric"', "is no JSON")):
        (begun / "backtest.json").write_text(text, encoding="utf-8")
        assert said in words(build(dashboard(tmp_path), Query.of()))
    put(tmp_path / "whole", handmade())
    assert "5 steps" in build(dashboard(tmp_path), Query.of()).lead


def test_a_backtest_can_be_chosen_and_one_that_is_gone_is_not_found(tmp_path: Path) -> None:
    other = {**handmade(), "data_set": "other"}
    keys = []
    for name, document in (("first", handmade()), ("second", other)):
        put(tmp_path / name, document)
        keys += [one.key for one in backtests(dashboard(tmp_path)) if one.name == name]
    context = dashboard(tmp_path)
    titles = [build(context, Query.of(replay=key)).title for key in keys]
    assert titles == ["Backtest: shop", "Backtest: other"]
    with pytest.raises(NotFoundError, match="no backtest 'x'"):
        build(context, Query.of(replay="x"))


def test_a_run_shows_its_own_backtest(tmp_path: Path) -> None:
    put(tmp_path / "run" / "backtest", handmade())
    (tmp_path / "run" / "evaluate").mkdir()
    put(tmp_path / "other", handmade())
    context = dashboard(tmp_path)
    (run,) = context.stores.runs()
    page = build(context, Query.of(run=run.key))
    assert control_of(page, "replay").value == (
        exports(context, Query.of(run=run.key))[0].text("replay")
    )
    assert block_of(page, Chart, "policies").origins[0].run == run.key
    with pytest.raises(NotFoundError, match="recsys backtest"):
        exports(context, Query.of(run="another"))
