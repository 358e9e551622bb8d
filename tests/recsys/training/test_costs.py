"""Costs that are planned agree with the steps that were measured, by the same TOML file."""

import json
import re
from pathlib import Path

import pytest

from pipelines.auto.estimates import parse_sizes
from pipelines.config.run import RunConfig, TwoTowerTrainingConfig
from pipelines.config.toml import merge, read_toml, validate
from pipelines.engine.artifacts import plain
from recsys.models.sequence.config import SequenceConfig
from recsys.training.costs import Counts, sequence_cost, table_memory, two_tower_cost
from recsys.training.passes import AdamWConfig, ShardingConfig, TrainingConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHOP = BENCHMARKS / "distributed" / "shop.toml"
MEASURED = json.loads((BENCHMARKS / "results/distributed/two_tower_ranks.json").read_text())
CASE = re.compile(r"(\d+)M rows, batch (\d+)(?:, saved)?, (\d) GPUs?: (step|tables|peak)")
PLANNED = [
    (*map(int, found.groups()[:3]), found[4], row["value"])
    for row in MEASURED["rows"]
    if (found := CASE.fullmatch(row["name"]))
]


@pytest.mark.parametrize(("millions", "batch", "gpus", "what", "value"), PLANNED)
def test_a_shop_costs_what_was_measured(millions, batch, gpus, what, value, tmp_path):
    given = merge(read_toml(SHOP), {"two_tower_training": {"batch_size": batch}})
    config = validate(RunConfig, merge(plain(RunConfig(workspace=tmp_path)), given), "shop.toml")
    items, rows = millions * 200_000, millions * 800_000
    shop = Counts(items=items, users=rows, events=20 * rows, rows=rows)
    training: TwoTowerTrainingConfig = config.two_tower_training
    cost = two_tower_cost(config.two_tower, training, shop, gpus, ShardingConfig(shard_from=1))
    tables = cost.tables_gib + cost.optimizer_gib
    planned = {"step": cost.step_ms, "tables": tables, "peak": cost.gib}[what]
    assert planned == pytest.approx(value, rel=0.15)


def test_a_pass_of_the_sequence_model_takes_what_was_measured():
    world = Counts(items=100_000, users=200_000, events=10_000_000)
    model = SequenceConfig(embedding_dim=64, hidden_dim=128)
    training = TrainingConfig(batch_size=512, max_epochs=1.0)
    cost = sequence_cost(model, training, world, 1)
    assert cost.num_steps == 390
    assert cost.seconds / 2 == pytest.approx(7.68, rel=0.15)


def test_tables_take_their_bytes_and_are_split_if_they_are_large():
    sharding = ShardingConfig()
    for rule, slots in {"dense": 3, "adam": 2, "rowwise_adam": 1 + 1 / 64}.items():
        how = AdamWConfig(tables=rule)
        weights, optimizer, _ = table_memory(1 << 28, 64, how, sharding, 2)
        assert weights == (1.0 if rule == "dense" else 0.5)
        assert optimizer == slots * weights
        assert table_memory(1 << 20, 64, how, sharding, 2)[0] == 2.0**-8


@pytest.mark.parametrize("text", ["items=3", "items=0,users=1,events=1", "10", "items=x,users=1"])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"--shop is items=N,users=N,events=N\[,rows=N\]"):
        parse_sizes(text)
