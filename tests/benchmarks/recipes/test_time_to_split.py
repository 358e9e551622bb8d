"""Users' last events after a moment, against the board's rules written user by user."""

from dataclasses import replace

import numpy as np
import pytest

from recsys.data.dataset import HeldOut
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.run import RunSettings
from tests.benchmarks.recipes.time_to_split import cut_at_quantiles, last_held_out
from tests.benchmarks.reproduction.ranking_run import experiment_in

SETTINGS = RunSettings(order="given", seed=0, device="cpu")


@pytest.fixture(scope="module")
def board(small_world):
    """The small world with times that overlap between users, cut by the board."""
    sequences, rng = small_world.order("given"), np.random.default_rng(5)
    begins = rng.integers(0, 40, sequences.num_user_rows)
    owners = sequences.users_of(np.arange(sequences.num_events))
    places = np.arange(sequences.num_events) - sequences.offsets[owners]
    timed = replace(sequences, times=(begins[owners] + 4 * places) * 86_400)
    return replace(small_world, orders={"given": cut_at_quantiles(timed)}, asks_last=True)


def asked(sequences, split):
    """Read the history and the target of each query by the rules, one user at a time."""
    times = [
        sequences.times[begin:end]
        for begin, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True)
    ]
    test_from = np.quantile(np.concatenate(times), 0.9)
    early = [one[one <= test_from] for one in times]
    early = [one if len(one) > 1 else one[:0] for one in early]
    validation_from = np.quantile(np.concatenate(early), 0.9)
    kept, moment = (early, validation_from) if split == "validation" else (times, test_from)
    return [
        sequences.offsets[user] + len(one) - 1
        for user, one in enumerate(kept)
        if len(one) and one[-1] > moment
    ]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_last_event_after_a_moment_is_asked_with_all_before_it_given(board, split):
    sequences = board.order("given")
    held_out = HeldOut.of(last_held_out(sequences, split), split)
    positions = asked(sequences, split)
    assert held_out.positions.tolist() == positions
    assert held_out.targets.values.tolist() == sequences.item_rows[positions].tolist()
    users = sequences.users_of(held_out.positions)
    assert held_out.seen.lengths().tolist() == (positions - sequences.offsets[users]).tolist()


def test_models_are_fitted_before_the_moment_and_refitted_before_the_next(board, tmp_path):
    experiment = experiment_in(tmp_path, board, SETTINGS)
    times, targets = board.order("given").times, experiment.queries("validation").held_out
    first = times[targets.positions].min()
    for chosen, split in ((None, "validation"), ({}, "test")):
        fitted = replace(experiment, chosen_steps=chosen).fitted_on.sequences
        known = times[fitted.positions_before(fitted.train_end)]
        asked_times = times[experiment.queries(split).held_out.positions]
        assert known.max() < asked_times.min()
        assert (known.max() < first) == (chosen is None)


def test_arrays_keep_what_is_asked(board, tmp_path):
    board.save(tmp_path)
    again = experiment_in(tmp_path, Prepared.load(tmp_path), SETTINGS)
    assert again.queries("test").held_out.targets.lengths().max() == 1
    assert len(again.queries("test")) == len(asked(board.order("given"), "test"))


def test_events_without_times_are_refused(small_world):
    with pytest.raises(ValueError, match="have none"):
        cut_at_quantiles(replace(small_world.order("given"), times=None))
