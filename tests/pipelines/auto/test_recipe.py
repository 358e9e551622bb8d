"""The sequence model's settings follow the shape of the data."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.auto.recipe import sequence_recipe

SHORT: dict[str, Any] = {"num_users": 5_000, "num_items": 10_000, "mean_history": 7.4}
LONG: dict[str, Any] = {"num_users": 943, "num_items": 1_682, "mean_history": 106.0}
MANY: dict[str, Any] = {**SHORT, "num_users": 50_000}


def test_long_histories_get_more_blocks_and_windows_that_hold_them() -> None:
    short, long = sequence_recipe(**SHORT).model, sequence_recipe(**LONG).model
    assert (short.num_blocks, long.num_blocks) == (1, 2)
    assert long.max_length > short.max_length


def test_texts_need_fewer_passes_and_less_of_the_neighbours() -> None:
    ids, text = sequence_recipe(**MANY), sequence_recipe(**MANY, has_text=True)
    assert text.training.max_epochs < ids.training.max_epochs
    assert 0 < text.model.neighbour_weight < ids.model.neighbour_weight


@pytest.mark.parametrize(
    ("change", "reads_times"),
    [({}, False), ({"has_times": True}, True), ({"has_times": True, "has_text": False}, False)],
)
def test_the_calendar_is_for_texts_with_times(change: dict[str, bool], reads_times: bool) -> None:
    shape = {**MANY, "has_text": True, **change}
    assert (sequence_recipe(**shape).model.calendar_days > 0) is reads_times


def test_large_catalogues_are_sampled() -> None:
    assert sequence_recipe(**SHORT).model.num_uniform_negatives is None
    large = {**SHORT, "num_items": 1_000_000}
    assert sequence_recipe(**large).model.num_uniform_negatives is not None


def test_a_training_is_enabled_and_validated_once_at_its_end() -> None:
    training = sequence_recipe(**SHORT).training
    assert training.enabled
    assert training.max_epochs == training.epochs_per_evaluation
