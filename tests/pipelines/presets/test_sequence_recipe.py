"""The sequence model's settings follow the shape of the data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.presets.sequence_recipe import DataShape, sequence_recipe

SHORT = DataShape(num_users=5_000, num_items=10_000, num_events=37_000)
LONG = DataShape(num_users=943, num_items=1_682, num_events=100_000)


def test_long_histories_get_more_blocks_and_windows_that_hold_them() -> None:
    short, long = sequence_recipe(SHORT).model, sequence_recipe(LONG).model
    assert (short.num_blocks, long.num_blocks) == (1, 2)
    assert long.max_length > short.max_length


def test_texts_need_fewer_passes_and_less_of_the_neighbours() -> None:
    many = replace(SHORT, num_users=50_000, num_events=400_000)
    ids, text = sequence_recipe(many), sequence_recipe(replace(many, has_text=True))
    assert text.training.max_epochs < ids.training.max_epochs
    assert 0 < text.model.neighbour_weight < ids.model.neighbour_weight


def test_more_users_get_larger_batches() -> None:
    many = replace(SHORT, num_users=50_000, num_events=400_000)
    assert sequence_recipe(many).training.batch_size > sequence_recipe(SHORT).training.batch_size


@pytest.mark.parametrize(
    ("change", "reads_times"),
    [({}, False), ({"has_times": True}, True), ({"has_times": True, "has_text": False}, False)],
)
def test_the_calendar_is_for_texts_with_times(change: dict[str, bool], reads_times: bool) -> None:
    many = DataShape(num_users=20_000, num_items=10_000, num_events=150_000, has_text=True)
    assert (sequence_recipe(replace(many, **change)).model.calendar_days > 0) is reads_times


def test_large_catalogues_are_sampled() -> None:
    assert sequence_recipe(SHORT).model.num_uniform_negatives is None
    large = replace(SHORT, num_items=1_000_000)
    assert sequence_recipe(large).model.num_uniform_negatives is not None


@pytest.mark.parametrize("shape", [SHORT, LONG])
def test_each_member_is_as_wide_as_one_alone(shape: DataShape) -> None:
    one, four = sequence_recipe(shape).model, sequence_recipe(shape, num_members=4).model
    assert four == replace(one, embedding_dim=4 * one.embedding_dim, num_members=4)


def test_a_training_is_enabled_and_validated_a_few_times() -> None:
    training = sequence_recipe(SHORT).training
    assert training.enabled
    assert training.max_epochs / training.epochs_per_evaluation == pytest.approx(4)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_items must be >= 1, got 0"):
        replace(SHORT, num_items=0)
    with pytest.raises(ValueError, match="num_members must be >= 1, got 0"):
        sequence_recipe(SHORT, num_members=0)
