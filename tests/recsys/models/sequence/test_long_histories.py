"""Sparse attention to single long histories, and the means that are kept of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.attention.latest import SHORTEST_WITH_BLOCKS
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import KeptHistories, OneHistory, States
from tests.recsys.testing.long_worlds import LongWorldConfig, long_world

NUM_ROWS = 41
CONFIG = SequenceConfig(
    embedding_dim=16,
    block="sparse",
    num_heads=2,
    hidden_dim=32,
    max_length=400,
    time_buckets=4,
    absolute_positions=False,
    backend="torch",
)


def made_model(config: SequenceConfig = CONFIG) -> SequenceModel:
    torch.manual_seed(0)
    inputs = FeatureSizes(num_item_rows=NUM_ROWS, content_dim=0)
    counts = torch.ones(NUM_ROWS, dtype=torch.int64)
    model = SequenceModel(config, inputs, ItemCatalogue.empty(NUM_ROWS), counts)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model.eval()


def history(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, NUM_ROWS, (num,), generator=draws)
    return rows, 1_600_000_000 + torch.arange(num) * 50_000


def whole(model: SequenceModel, rows: Tensor, times: Tensor) -> Tensor:
    offsets = torch.tensor([0, len(rows)])
    batch = JaggedBatch({"history": Jagged(rows, offsets), "history.times": Jagged(times, offsets)})
    return model.query_vectors(batch)[0]


def kept_of(model: SequenceModel, **limits: float) -> KeptHistories:
    advance = OneHistory(model)._members[0].advance
    return KeptHistories(advance, SHORTEST_WITH_BLOCKS, **limits)  # type: ignore[arg-type]


def assert_near(one: Tensor, other: Tensor) -> None:
    assert torch.allclose(one, other, atol=2e-6), (one - other).abs().max()


@pytest.mark.parametrize("further", [0, 1, 31, 32, 100])
def test_kept_means_of_sparse_attention_equal_the_whole_history(further: int) -> None:
    model, (rows, times) = made_model(replace(CONFIG, time_buckets=0)), history(370)
    one = OneHistory(model)
    assert one._kept is not None
    one.query_vector(rows[: 370 - further], None)
    assert_near(one.query_vector(rows, None), whole(model, rows, times))
    other = rows.flip(0)
    assert_near(one.query_vector(other, None), whole(model, other, times))
    short = rows[:231]
    assert_near(one.query_vector(short, None), whole(model, short, times))
    assert len(one._kept) == 2


def test_kept_means_are_computed_on_from_and_a_repeat_reads_nothing() -> None:
    model, (rows, times) = made_model(), history(301)
    advance, read = OneHistory(model)._members[0].advance, []

    def counted(rows: Tensor, times: Tensor | None, states: States | None, first: int) -> object:
        read.append((len(rows), first, states is not None))
        return advance(rows, times, states, first)

    kept = KeptHistories(counted, SHORTEST_WITH_BLOCKS)  # type: ignore[arg-type]
    kept.query_vector(rows[:300], times[:300])
    vector = kept.query_vector(rows, times)
    kept.query_vector(rows, times)
    assert read == [(300, 0, False), (301, 300, True)]
    assert_near(vector, whole(model, rows, times))


def test_a_history_that_changed_is_read_from_its_start() -> None:
    model, (rows, times) = made_model(), history(300)
    without = torch.arange(300) != 100
    late = times.clone()
    late[150] += 1
    for other, moments in (
        (rows[without], times[without]),
        (rows[:280], times[:280]),
        (rows, late),
        (torch.cat([rows[:60], rows[:240]]), times),
    ):
        kept = kept_of(model)
        kept.query_vector(rows, times)
        assert_near(kept.query_vector(other, moments), whole(model, other, moments))


def test_beyond_the_longest_history_the_latest_events_are_read() -> None:
    model, (rows, times) = made_model(), history(500)
    one = OneHistory(model)
    for end in (399, 400, 401, 500):
        assert_near(
            one.query_vector(rows[:end], times[:end]), whole(model, rows[:end], times[:end])
        )


def test_states_are_bounded_and_short_histories_keep_none() -> None:
    model = made_model()
    rows, times = history(SHORTEST_WITH_BLOCKS - 1)
    kept = kept_of(model)
    kept.query_vector(rows, times)
    assert len(kept) == 0
    rows, times = history(300)
    kept.query_vector(rows, times)
    size = kept._num_bytes
    assert size == sum(one.num_bytes for one in kept._kept.values()) > 0
    kept = kept_of(model, max_bytes=3 * size)
    for seed in range(6):
        kept.query_vector(*history(300, seed))
    assert len(kept) == 3
    assert kept._num_bytes == 3 * size
    kept = kept_of(model, max_seconds=-1.0)
    kept.query_vector(rows, times)
    assert (len(kept), kept._num_bytes) == (0, 0)


@pytest.mark.parametrize(
    "change", [{"calendar_days": 10.0}, {"num_members": 2, "num_heads": 1}, {"num_blocks": 2}]
)
def test_other_models_of_sparse_attention_keep_nothing_and_answer_alike(
    change: dict[str, float],
) -> None:
    rows, times = history(260)
    model = made_model(replace(CONFIG, **change))  # type: ignore[arg-type]
    one = OneHistory(model)
    assert one._kept is None
    assert_near(one.query_vector(rows[:259], times[:259]), whole(model, rows[:259], times[:259]))
    assert_near(one.query_vector(rows, times), whole(model, rows, times))


def test_a_saved_model_encodes_as_before(tmp_path: Path) -> None:
    model, (rows, times) = made_model(), history(70)
    model.save(tmp_path)
    loaded = SequenceModel.load(tmp_path, ItemCatalogue.empty(NUM_ROWS))
    assert torch.equal(whole(loaded, rows, times), whole(model, rows, times))


def test_a_long_world_ends_with_an_interest_that_returns() -> None:
    settings = LongWorldConfig(
        seed=3, num_long=4, num_short=4, long_events=900, min_gap=300, short_events=60
    )
    world, same = long_world(settings), long_world(settings)
    assert (world.rows == same.rows).all()
    assert world.rows.min() >= 1
    assert world.rows.max() < settings.num_item_rows
    for user, gap in enumerate(world.gaps):
        rows = world.rows[world.offsets[user] : world.offsets[user + 1]]
        assert gap >= (300 if user < 4 else 10)
        # The cue and the favourite, as they were before; a cue is an interest's number plus 1.
        assert (rows[-2:] == rows[-2 - gap : len(rows) - gap]).all()
        interest = (rows[-1] - 1 - settings.num_interests) // settings.items_per_interest
        assert rows[-2] == 1 + interest
    with pytest.raises(ValueError, match="long_events must be >= 2"):
        replace(settings, long_events=500)
