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
    place,
    plan_for,
)

NONE = ("score_dim", "event", "value", "hottest", "label", "row", "table")
LINK = {"kib": [1.0, 1024.0], "ms": [0.0, 1.0]}
ROUND = Hardware(
    name="round",
    memory_gib=10,
    reserved_gib=0,
    gpus_a_host=8,
    step={"host_ms": 0, "fixed_ms": 1, "score_ns": 1, **{f"{name}_ns": 0 for name in NONE}},
    score_bytes=0,
    value_bytes=0,
    row_bytes=0,
    copy_gb_s=1e12,
    all_to_all=LINK,
    all_reduce=LINK,
)
"""10 GiB, a nanosecond a score, 1 MiB a millisecond."""


def work(**changes: Any) -> Workload:
    return replace(Workload(items=1 << 20, dim=64, batch=1000, negatives=0, history=1), **changes)


def test_expected_rows_are_those_of_drawn_ids() -> None:
    share = np.diff(np.log(np.arange(1, 20_002))) / np.log(20_001)
    drawn = np.random.default_rng(0).choice(20_000, size=(20, 5_000), p=share)
    counted = np.mean([len(np.unique(one)) for one in drawn])
    assert distinct_rows(20_000, 5_000) == pytest.approx(counted, rel=0.02)
    draws = np.random.default_rng(1).random(200_000)
    first = np.count_nonzero(np.floor(10_001**draws) == 1)
    one = work(items=10_000, batch=1_000, history=200)
    assert one.hottest_events == pytest.approx(first, rel=0.03)
    assert replace(one, head=1_000.0).hottest_events < first / 50


def test_a_table_takes_its_bytes_and_sends_its_rows_by_placement() -> None:
    dense = work(tables="dense")
    sizes = [
        place(dense, ROUND, gpus, "items", 500.0, kind)
        for gpus, kind in ((1, "replicated"), (4, "row-wise"), (64, "column-wise"))
    ]
    assert [one.weights_gib for one in sizes] == [0.25, 0.0625, 0.25 / 16]
    assert [one.state_gib for one in sizes] == [0.5, 0.125, 0.5 / 16]
    # Ids to the owners, parts of every bag back, gradients there.
    two, four, columns = (
        place(work(), ROUND, gpus, "items", 500.0, kind).exchanged_mib * 2**20
        for gpus, kind in ((2, "row-wise"), (4, "row-wise"), (4, "column-wise"))
    )
    assert two == 500 * (8 / 2 + 2 * 64 * 4)
    assert four == 500 * (8 * 3 / 4 + 2 * 3 * 64 * 4)
    assert columns == 500 * (8 * 3 + 2 * 3 * 16 * 4)


def test_step_time_and_cost_of_a_pass() -> None:
    found = plan_for(work(events_per_day=3_600_000), ROUND, 1, price_per_hour=2.0)
    # 1 ms, and a nanosecond for each of 1000 x 1000 scores: 2 ms for 1000 events.
    assert found.total_ms == pytest.approx(2.0)
    assert found.pass_hours == pytest.approx(0.002)
    assert found.cost == pytest.approx(0.004)


def test_fewest_gpus_is_the_least_number_that_fits() -> None:
    large = work(items=200 << 20, tables="dense")
    least = fewest_gpus(large, ROUND, keeps_up=False)
    assert least is not None
    assert least.gpus > 1
    assert plan_for(large, ROUND, least.gpus).fits
    assert not plan_for(large, ROUND, least.gpus - 1).fits


def test_hosts_of_several_gpus_add_their_network() -> None:
    within = plan_for(work(users=1 << 24, batch=100), ROUND, 8)
    across = plan_for(work(users=1 << 24, batch=100), replace(ROUND, network_gb_s=0.01), 9)
    assert across.step_ms["exchange of rows"] > 2 * within.step_ms["exchange of rows"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--items", "0"], "items must be between 1 and 1e+12, got 0"),
        (["--items", "nan"], "items must be a whole number"),
        (["--items", "10", "--dim", "7"], "dim must be a multiple of 4"),
        (["--items", "10", "--gpus", "1000000"], "must be between 1"),
        (["--items", "10", "--gpu", "abacus"], "no measured constants of 'abacus'"),
        (["--items", "10", "--price-per-hour", "-3"], "price_per_hour must be between"),
    ],
)
def test_bad_values_are_refused(options: list[str], words: str) -> None:
    found = CliRunner().invoke(app, ["plan", *options])
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


def test_the_command_answers_for_gpus_and_for_a_laptop() -> None:
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
