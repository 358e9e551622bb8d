"""Plans: known answers of memory and traffic, what fits, and bad values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.planning.plan import (
    Hardware,
    Workload,
    distinct_rows,
    fewest_gpus,
    machine_named,
    plan_for,
)

NONE = ("score_dim", "event", "value", "hottest", "label", "row", "table")
ROUND = Hardware(
    name="round",
    memory_gib=10,
    reserved_gib=0,
    max_gpus=65_536,
    step={"host_ms": 0, "fixed_ms": 1, "score_ns": 1, **{f"{name}_ns": 0 for name in NONE}},
    score_bytes=0,
    value_bytes=0,
    row_bytes=0,
)
"""10 GiB, a nanosecond a score."""


def work(**changes: Any) -> Workload:
    return replace(Workload(items=1 << 20, dim=64, batch=1000, negatives=0, history=1), **changes)


def test_expected_rows_are_those_of_drawn_ids():
    share = np.diff(np.log(np.arange(1, 20_002))) / np.log(20_001)
    drawn = np.random.default_rng(0).choice(20_000, size=(20, 5_000), p=share)
    counted = np.mean([len(np.unique(one)) for one in drawn])
    assert distinct_rows(20_000, 5_000) == pytest.approx(counted, rel=0.02)
    draws = np.random.default_rng(1).random(200_000)
    first = np.count_nonzero(np.floor(10_001**draws) == 1)
    one = work(items=10_000, batch=1_000, history=200)
    assert one.hottest_events == pytest.approx(first, rel=0.03)
    assert replace(one, head=1_000.0).hottest_events < first / 50


def test_a_table_takes_its_bytes_and_is_split_if_it_does_not_fit():
    one = plan_for(work(tables="dense"), ROUND, 1)
    assert (one.placement, one.memory_gib["weights"]) == ({"items": "replicated"}, 0.25)
    assert one.memory_gib["optimizer"] == 0.5
    large = work(items=64 << 20, tables="dense")
    split = plan_for(large, ROUND, 8)
    assert split.placement == {"items": "row-wise"}
    assert (split.memory_gib["weights"], split.memory_gib["optimizer"]) == (2.0, 4.0)
    # Ids to the owners, parts of every bag back, gradients there; two of the three at a time.
    rows = large.item_rows_of_a_step(8)
    sent = rows * (8 * 7 / 8 + 2 * 7 * 64 * 4)
    assert split.memory_gib["exchange"] == pytest.approx(2 * sent / 2**30)


def test_step_time_of_a_pass():
    found = plan_for(work(events_per_day=3_600_000), ROUND, 1)
    # 1 ms, and a nanosecond for each of 1000 x 1000 scores: 2 ms for 1000 events.
    assert found.total_ms == pytest.approx(2.0)
    assert found.pass_hours == pytest.approx(0.002)


def test_fewest_gpus_is_the_least_power_of_two_that_fits():
    large = work(items=200 << 20, tables="dense")
    least = fewest_gpus(large, ROUND)
    assert least is not None
    assert least > 1
    assert plan_for(large, ROUND, least).fits
    assert not plan_for(large, ROUND, least // 2).fits


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--items", "0"], "items must be between 1 and 1e+12, got 0"),
        (["--items", "nan"], "items must be a whole number"),
        (["--items", "10", "--dim", "7"], "dim must be a multiple of 4"),
        (["--items", "10", "--gpus", "1000000"], "must be between 1"),
        (["--items", "10", "--gpu", "abacus"], "no measured constants of 'abacus'"),
    ],
)
def test_bad_values_are_refused(options, words):
    found = CliRunner().invoke(app, ["plan", *options])
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


def test_the_command_answers_for_gpus_and_for_a_laptop():
    run = CliRunner().invoke
    large = run(app, ["plan", "--users", "1e9", "--items", "1e8", "--gpus", "1", "--json"])
    assert large.exit_code == 3
    document = json.loads(large.output)
    assert not document["fits"]
    assert document["fewest_gpus"] > 1
    words = run(app, ["plan", "--items", "1e5", "--gpus", "0"])
    assert words.exit_code == 0
    assert "fits on this CPU" in words.output
    assert machine_named("H200").sources
