"""Plans: known answers of memory and traffic, what fits, and what nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.planning.machine import ExchangeTimes, Hardware, StepCost, machine_named, machines
from pipelines.planning.plan import EmbeddingTable, fewest_gpus, place, plan_for
from pipelines.planning.workload import Workload, distinct_rows

GIB = 2**30
LINK = ExchangeTimes(kib=[1, 1024], ms=[0.0, 1.0])


@pytest.fixture
def round_machine() -> Hardware:
    """A machine of round numbers: 10 GiB, a nanosecond an element, 1 MiB a millisecond."""
    cost = StepCost(
        host_ms=0,
        fixed_ms=1,
        score_ns=1,
        score_dim_ns=0,
        event_ns=0,
        value_ns=0,
        hottest_ns=0,
        label_ns=0,
        row_ns=0,
        table_ns=0,
    )
    return Hardware(
        name="round",
        memory_gib=10,
        reserved_gib=0,
        gpus_a_host=8,
        step=cost,
        score_bytes=0,
        value_bytes=0,
        row_bytes=0,
        copy_gb_s=1e12,
        all_to_all=LINK,
        all_reduce=LINK,
    )


def work(**changes: Any) -> Workload:
    return replace(Workload(items=1 << 20, dim=64, batch=1000, negatives=0, history=1), **changes)


def test_expected_distinct_rows_are_those_of_drawn_ids() -> None:
    share = np.diff(np.log(np.arange(1, 20_002))) / np.log(20_001)
    drawn = np.random.default_rng(0).choice(20_000, size=(20, 5_000), p=share)
    counted = np.mean([len(np.unique(one)) for one in drawn])
    assert distinct_rows(20_000, 5_000, 1.0) == pytest.approx(counted, rel=0.02)
    assert distinct_rows(100, 1e9, 0.0) == pytest.approx(100)


def test_a_table_takes_its_bytes_by_placement(round_machine: Hardware) -> None:
    table = EmbeddingTable("items", 1 << 20, 500.0, 1000.0)
    sizes = work(tables="adam")
    whole = place(sizes, round_machine, 1, table, "replicated")
    assert (whole.weights_gib, whole.state_gib) == (0.25, 0.5)
    rows = place(sizes, round_machine, 4, table, "row-wise")
    assert (rows.weights_gib, rows.state_gib) == (0.0625, 0.125)
    columns = place(sizes, round_machine, 64, table, "column-wise")
    assert columns.weights_gib == 0.25 / 16


def test_traffic_of_row_wise_tables_grows_with_gpus_and_of_column_wise_ones_hardly(
    round_machine: Hardware,
) -> None:
    table = EmbeddingTable("items", 1 << 20, 500.0, 1000.0)
    # Ids to the owners, parts of every bag back, gradients there.
    sent = [
        place(work(), round_machine, gpus, table, "row-wise").exchanged_mib * 2**20
        for gpus in (2, 4)
    ]
    assert sent[0] == 500 * (8 / 2 + 2 * 64 * 4)
    assert sent[1] == 500 * (8 * 3 / 4 + 2 * 3 * 64 * 4)
    columns = place(work(), round_machine, 4, table, "column-wise").exchanged_mib * 2**20
    assert columns == 500 * (8 * 3 + 2 * 3 * 16 * 4)


def test_step_time_and_cost_of_a_pass(round_machine: Hardware) -> None:
    found = plan_for(work(events_per_day=3_600_000), round_machine, 1, price_per_hour=2.0)
    # 1 ms, and a nanosecond for each of 1000 x 1000 scores: 2 ms for 1000 events.
    assert found.total_ms == pytest.approx(2.0)
    assert found.pass_hours == pytest.approx(0.002)
    assert found.cost == pytest.approx(0.004)


def test_fewest_gpus_is_the_least_number_that_fits(round_machine: Hardware) -> None:
    large = work(items=200 << 20, tables="adam")
    assert not plan_for(large, round_machine, 1).fits
    least = fewest_gpus(large, round_machine, keeps_up=False)
    assert least is not None
    assert least.gpus > 1
    assert plan_for(large, round_machine, least.gpus).fits
    assert not plan_for(large, round_machine, least.gpus - 1).fits


def test_hosts_of_several_gpus_add_their_network(round_machine: Hardware) -> None:
    within = plan_for(work(users=1 << 24, batch=100), round_machine, 8)
    across = plan_for(work(users=1 << 24, batch=100), replace(round_machine, network_gb_s=0.01), 9)
    assert across.step_ms["exchange of rows"] > 2 * within.step_ms["exchange of rows"]


@pytest.mark.parametrize("name", sorted(machines()))
def test_every_machine_plans_a_small_shop(name: str) -> None:
    machine = machine_named(name)
    found = plan_for(Workload(items=10_000), machine, 0 if machine.is_cpu else 1)
    assert found.fits
    assert found.total_ms > 0
    assert machine.sources


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--items", "0"], "items must be between 1 and 1e+12, got 0"),
        (["--items", "1e30"], "items must be between"),
        (["--items", "nan"], "items must be a whole number"),
        (["--items", "1.5"], "items must be a whole number"),
        (["--items", "10", "--users", "-1"], "users must be between 0"),
        (["--items", "10", "--dim", "7"], "dim must be a multiple of 4"),
        (["--items", "10", "--dim", "0"], "dim must be a multiple of 4"),
        (["--items", "10", "--gpus", "-1"], "gpus must be between 1"),
        (["--items", "10", "--gpus", "1000000"], "gpus must be between 1"),
        (["--items", "10", "--gpu", "abacus"], "no measured constants of 'abacus'"),
        (["--items", "10", "--price-per-hour", "-3"], "price_per_hour must be between"),
        (["--items", "10", "--events-per-day", "inf"], "events_per_day must be between"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(options: list[str], words: str) -> None:
    from pipelines.cli.main import app

    found = CliRunner().invoke(app, ["plan", *options])
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


def test_the_command_answers_for_gpus_and_for_a_laptop() -> None:
    from pipelines.cli.main import app

    run = CliRunner().invoke
    large = run(app, ["plan", "--users", "1e9", "--items", "1e8", "--gpus", "1", "--json"])
    assert large.exit_code == 3
    document = json.loads(large.output)
    assert not document["fits"]
    assert document["fewest_gpus"] > 1
    words = run(app, ["plan", "--items", "1e5", "--gpus", "0"])
    assert words.exit_code == 0
    assert "fits on this CPU" in words.output


def test_the_most_frequent_item_is_expected_as_often_as_it_is_drawn() -> None:
    draws = np.random.default_rng(1).random(200_000)
    first = np.count_nonzero(np.floor(10_001**draws) == 1)
    one = work(items=10_000, batch=1_000, history=200)
    assert one.hottest_events == pytest.approx(first, rel=0.03)
    assert replace(one, head=1_000.0).hottest_events < first / 50
