"""The page Replay: what is stale, what it costs, and what is half done, with known numbers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.replay import backtests, build, exports, read
from pipelines.pages.backtest_numbers import ALL, average, falling, measure_ageing
from pipelines.pages.document import Chart, Table, Words
from recsys.replay.folder import ReplayFolder, save_arrays, save_lists, write_json
from recsys.replay.steps import Step
from tests.pipelines.dashboard.documents import block_of, control_of, dashboard, words

WEEK = 7 * 86_400
BEGIN = 20_000 * 86_400
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


def description(*, digest: str = "d1") -> dict[str, Any]:
    steps = [
        Step(number=number, begin=BEGIN + number * WEEK, end=BEGIN + (number + 1) * WEEK)
        for number in range(NUM_STEPS + 1)
    ]
    return {
        "data_set": "shop",
        "data_digest": digest,
        "digest": "c1",
        "seed": 0,
        "config": {"policies": ["full", "never"]},
        "steps": [asdict(step) for step in steps],
    }


def put(folder: Path, document: dict[str, Any] | None, *, digest: str = "d1") -> Path:
    (folder / "steps").mkdir(parents=True)
    write_json(folder / "replay.json", description(digest=digest))
    if document is not None:
        (folder / "backtest.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def put_lists(folder: Path, step: int, name: str, targets: list[int]) -> None:
    """Four queries for items 1 to 4; each list holds its target in place ``targets``, 0 nowhere."""
    replay = ReplayFolder(folder)
    save_arrays(replay.queries(step), targets_values=np.arange(1, 5), targets_offsets=np.arange(5))
    item_rows = torch.full((4, 10), 9)
    for query, place in enumerate(targets):
        if place:
            item_rows[query, place - 1] = query + 1
    policy, row_ = name.split(".")
    save_lists(replay.lists(step, policy, row_), item_rows, 3.0, 0.1)


def test_stale_models_lose_a_hundredth_a_day(tmp_path: Path) -> None:
    put(tmp_path / "one", handmade())
    context = dashboard(tmp_path)
    backtest = read(context, backtests(context)[0])
    ageing = measure_ageing(backtest, "ndcg@10")
    assert ageing is not None
    assert {name: round(share, 6) for name, _, share in ageing.losses()} == {
        "a day": 0.01,
        "a week": 0.07,
    }
    assert ageing.oldest == 28.0
    assert ageing.days_to_lose(0.1) == pytest.approx(10.0)
    assert ageing.days_to_lose(0.5) is None
    page = build(context, Query.of())
    said = words(page)
    assert "a day 1.0%, a week 7.0%" in said
    assert "the loss reaches 10% after 10 days" in said


def test_a_fitted_line_never_rises() -> None:
    fitted = falling([1.0, 0.8, 0.9, 0.5], [1e9, 1.0, 3.0, 1.0])
    assert fitted.tolist() == pytest.approx([1.0, 0.875, 0.875, 0.5])


def test_quality_stands_beside_cost(tmp_path: Path) -> None:
    put(tmp_path / "one", handmade())
    page = build(dashboard(tmp_path), Query.of())
    rows = {row[0]: row for row in block_of(page, Table, "costs").rows}
    # Four steps behind the first one.
    assert [rows[name][5] for name in ("full", "incremental", "never")] == [400.0, 40.0, 0.0]
    assert rows["incremental"][4] == pytest.approx(0.95)
    assert rows["incremental"][6] == pytest.approx(0.1)
    # .2 against a mean of .172 without retraining, in a ninth of an hour.
    assert rows["full"][7] == pytest.approx((0.2 - 0.172) * 9)
    assert rows["never"][7] is None
    assert page.lead.startswith("NDCG@10 of the served list from 2024-10-01 on, 5 steps: 0.2000")
    assert "0.1900 (-5.0%) updated before every step" in page.lead


def test_slices_weigh_steps_by_their_queries(tmp_path: Path) -> None:
    put(tmp_path / "one", handmade())
    context = dashboard(tmp_path)
    page = build(context, Query.of())
    rows = {row[0]: row for row in block_of(page, Table, "slices").rows}
    # (1 + 4 + 9 + 16 + 25) / (1 + 2 + 3 + 4 + 5) = 11 / 3 times the first step's value.
    assert rows["new users"][1:3] == pytest.approx((150, 0.1 * 11 / 3))
    assert rows["new users"][4] == pytest.approx(0.05 * 11 / 3)
    sliced = build(context, Query.of(slice="new users"))
    chart = block_of(sliced, Chart, "policies")
    assert [row[5] for row in chart.rows if row[2] == "full"] == [10, 20, 30, 40, 50]
    assert all(row[4] is None for row in chart.rows)
    assert sliced.lead.startswith("NDCG@10 of the served list (new users) from")


def test_peers_are_paired_by_step(tmp_path: Path) -> None:
    put(tmp_path / "one", handmade())
    context = dashboard(tmp_path)
    page = build(context, Query.of())
    (peer,) = block_of(page, Chart, "peers").rows
    # .1 on even steps, .11 on odd ones: a mean of .106.
    assert peer[0] == HOSTILE
    assert peer[2] == pytest.approx(0.2 - 0.106)
    assert 0.09 <= float(str(peer[3])) <= 0.094 <= float(str(peer[4])) <= 0.1
    said = words(page)
    assert "als failed on step 1: out of memory" in said
    assert "on 1 of 5 steps a source was above it" in said


def test_backtests_of_one_data_stand_side_by_side(tmp_path: Path) -> None:
    better = handmade()
    for one in better["rows"]:
        if one["policy"] == "full" and one["row"] == "served":
            one["metrics"] = values(0.25)
    for name, document, digest in (
        ("first", handmade(), "d1"),
        ("second", better, "d1"),
        ("other", handmade(), "d2"),
    ):
        put(tmp_path / name, document, digest=digest)
    context = dashboard(tmp_path)
    keys = {one.name: one.key for one in backtests(context)}
    replays = (keys["first"], keys["second"], keys["other"])
    page = build(context, Query.of(replays=replays))
    names = {row[2] for row in block_of(page, Chart, "policies").rows}
    assert {"first \u00b7 full", "second \u00b7 full"} <= names
    assert not any(str(name).startswith("other") for name in names)
    assert any("other is left out" in notice for notice in page.notices)
    costs = {row[0]: row[1] for row in block_of(page, Table, "costs").rows}
    assert costs["second \u00b7 full"] == pytest.approx(0.25)
    assert control_of(page, "replays").value == replays


def test_an_unfinished_backtest_shows_the_steps_that_there_are(tmp_path: Path) -> None:
    folder = put(tmp_path / "run" / "backtest", None)
    put_lists(folder, 1, "first.ease", [1, 1, 0, 0])
    put_lists(folder, 2, "full.ease", [1, 1, 1, 0])
    put_lists(folder, 2, "never.ease", [1, 0, 0, 0])
    (folder / "steps/2/lists/never.sequence.npz").write_bytes(b"half written")
    context = dashboard(tmp_path)
    page = build(context, Query.of())
    (notice,) = page.notices
    assert "run/backtest is not finished: 2 of 5 steps have lists (full 2, never 2)" in notice
    rows = block_of(page, Chart, "policies").rows
    assert {(row[2], row[0]): row[3] for row in rows} == {
        ("full", 1): 0.5,
        ("full", 2): 0.75,
        ("never", 1): 0.5,
        ("never", 2): 0.25,
    }
    # The next step's lists are there at the next look.
    put_lists(folder, 3, "full.ease", [1, 1, 1, 1])
    assert "3 of 5 steps" in build(context, Query.of()).notices[0]
    backtest = read(context, backtests(context)[0])
    assert average(backtest.line("full", "ease", "ndcg@10", ALL)) == pytest.approx(0.75)


def test_what_has_no_steps_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "recsys backtest" in block_of(build(dashboard(tmp_path), Query.of()), Words).lines[0]
    begun = put(tmp_path / "begun", None)
    assert "answered no step" in block_of(build(dashboard(tmp_path), Query.of()), Words).lines[0]
    (begun / "backtest.json").write_text('{"metric": "ndcg@10"}', encoding="utf-8")
    page = build(dashboard(tmp_path), Query.of())
    assert "another version" in page.notices[0]
    (begun / "backtest.json").write_text('{"metric"', encoding="utf-8")
    assert "is no JSON" in build(dashboard(tmp_path), Query.of()).notices[0]
    put(tmp_path / "whole", handmade())
    page = build(dashboard(tmp_path), Query.of())
    assert page.notices == []
    assert "5 steps" in page.lead


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    document = handmade()
    one = document["rows"][0]
    one["metrics"], other = values(float("nan")), document["rows"][7]
    other["standard_errors"] = values(float("nan"))
    put(tmp_path / "one", document)
    rows = block_of(build(dashboard(tmp_path), Query.of()), Chart, "policies").rows
    full = {row[0]: row[4] for row in rows if row[2] == "full"}
    assert full == {2: None, 3: 0.002, 4: 0.002, 5: 0.002}


def test_unknown_values_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    put(tmp_path / "one", handmade())
    context = dashboard(tmp_path)
    with pytest.raises(NotFoundError, match="no backtest 'x'"):
        build(context, Query.of(replays="x"))
    with pytest.raises(QueryError, match=r"recall@10"):
        build(context, Query.of(metric="mrr@5"))
    with pytest.raises(QueryError, match="new users"):
        build(context, Query.of(slice="old users"))


def test_a_run_shows_its_own_backtest(tmp_path: Path) -> None:
    put(tmp_path / "other", handmade())
    put(tmp_path / "run" / "backtest", handmade())
    (tmp_path / "run" / "evaluate").mkdir()
    context = dashboard(tmp_path)
    (run,) = context.stores.runs()
    page = build(context, Query.of(run=run.key))
    assert control_of(page, "replays").value == (
        exports(context, Query.of(run=run.key))[0].text("replays"),
    )
    assert block_of(page, Chart, "policies").origins[0].run == run.key
    with pytest.raises(NotFoundError, match="recsys backtest"):
        exports(context, Query.of(run="another"))


def test_hidden_folders_and_partitions_are_not_searched(tmp_path: Path) -> None:
    for name in (".hidden", "day=2026-01-01"):
        put(tmp_path / name / "one", handmade())
    put(tmp_path / "shop" / "deep" / "one", handmade())
    assert [one.name for one in backtests(dashboard(tmp_path))] == ["one"]


def test_what_does_not_change_is_drawn_once(tmp_path: Path) -> None:
    put(tmp_path / "one", handmade())
    context = dashboard(tmp_path)
    assert build(context, Query.of()).blocks is build(context, Query.of()).blocks
