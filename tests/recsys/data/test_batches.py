"""Batches, sequences, masks, windows of events and drawn negatives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, all_finite
from recsys.data.dataset import Sequences
from recsys.data.top_k import ItemMask
from recsys.data.windows import (
    domain_positions,
    domain_window_batch,
    domain_windows,
    every_item,
    mixed_candidates,
    next_events,
    training_windows,
    window_batch,
)
from recsys.layers.chunked_softmax import sampled_softmax_loss


@given(
    st.lists(st.lists(st.integers(1, 99), max_size=7), min_size=1, max_size=6), st.integers(1, 5)
)
def test_padding_keeps_the_latest_values_on_the_right(lists: list[list[int]], length: int) -> None:
    padded = Jagged.from_lists(lists).padded(length)
    expected = [[0] * max(0, length - len(row)) + row[-length:] for row in lists]
    assert padded.tolist() == expected


def test_a_missing_feature_is_named_beside_those_there_are() -> None:
    batch = JaggedBatch({"history": Jagged.one_each(torch.tensor([3, 4]))})
    with pytest.raises(KeyError, match=r"no feature 'user'.*history"):
        batch["user"]


def test_take_picks_examples_in_any_order_and_repeatedly() -> None:
    jagged = Jagged.from_lists([[1, 2], [], [3]])._replace(weights=torch.tensor([0.1, 0.2, 0.3]))
    taken = jagged.take(torch.tensor([2, 1, 0, 2]))
    assert taken.values.tolist() == [3, 1, 2, 3]
    assert taken.offsets.tolist() == [0, 1, 1, 3, 4]
    torch.testing.assert_close(taken.weights, torch.tensor([0.3, 0.1, 0.2, 0.3]))
    assert jagged.take(torch.empty(0, dtype=torch.int64)).batch_size == 0


def three_users() -> Sequences:
    """User 1: items 1 2 3 4 (last two held out), user 2: nothing, user 3: items 5 6 in train."""
    return Sequences(
        item_rows=np.array([1, 2, 3, 4, 5, 6]),
        offsets=np.array([0, 0, 4, 4, 6]),
        train_end=np.array([0, 2, 4, 6]),
        validation_end=np.array([0, 3, 4, 6]),
        times=np.array([10, 20, 30, 40, 50, 60]),
        context={"hour": np.array([0, 1, 2, 3, 4, 5])},
    )


def of_users(*events: list[int]) -> Sequences:
    """Users' events, all of them in train."""
    offsets = np.cumsum([0, 0, *map(len, events)])
    rows, ends = np.array([row for own in events for row in own]), offsets[1:]
    return Sequences(rows, offsets, ends, ends, times=np.arange(len(rows)) * 60)


def test_labels_of_each_split() -> None:
    sequences = three_users()
    expected = {"train": [1, 5], "validation": [2], "test": [3], "all": [1, 2, 3, 5]}
    for split, positions in expected.items():
        assert sequences.label_positions(split).tolist() == positions  # type: ignore[arg-type]
    assert sequences.labels(np.array([2, 3])).tolist() == [3, 4]


def test_a_query_holds_only_what_came_before_its_label() -> None:
    queries = three_users().queries(
        np.array([3, 0, 5]), max_history=2, user_features={"age": np.array([0, 7, 8, 9])}
    )
    assert queries["history"].values.tolist() == [2, 3, 5]
    assert queries["history"].lengths().tolist() == [2, 0, 1]
    assert queries["user"].values.tolist() == [1, 1, 3]
    assert queries["user.age"].values.tolist() == [7, 7, 9]
    assert queries["context.hour"].values.tolist() == [3, 0, 5]


def test_sequences_come_back_from_disk_and_ends_outside_a_users_events_are_refused(
    tmp_path: Path,
) -> None:
    sequences = three_users()
    for name in ("item_rows", "offsets", "train_end", "validation_end"):
        np.save(tmp_path / f"{name}.npy", getattr(sequences, name))
    loaded = Sequences.load(tmp_path)
    assert (loaded.times, loaded.context) == (None, {})
    assert loaded.label_positions("all").tolist() == [1, 2, 3, 5]
    with pytest.raises(ValueError, match="user row 1 has split ends outside"):
        replace(sequences, train_end=np.array([0, 5, 5, 6]), validation_end=np.array([0, 5, 5, 6]))


@pytest.mark.parametrize("max_length", [1, 2, 3, 50])
def test_every_event_but_the_first_is_a_label_once(max_length: int) -> None:
    numbered = of_users([], [1], [2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12, 13, 14])
    windows = training_windows(numbered, "train", max_length)
    labels, has_label = next_events(window_batch(numbered, *windows)["history"])
    assert sorted(labels[has_label].tolist()) == [3, 5, 6, 7, 8, 9, 10, 12, 13, 14]
    assert (windows.ends - windows.starts).max() <= max_length + 1
    assert (windows.ends - windows.starts).min() >= 2


def test_the_last_event_and_empty_sequences_have_no_label() -> None:
    labels, has_label = next_events(Jagged.from_lists([[], [1, 2, 3], [], [4], []]))
    assert labels.tolist() == [2, 3, 0, 0]
    assert has_label.tolist() == [True, True, False, False]
    labels, has_label = next_events(Jagged.from_lists([[], []]))
    assert len(labels) == len(has_label) == 0


ROWS = st.sets(st.integers(0, 19))


@given(ROWS, ROWS)
def test_masks_combine_like_sets_and_never_hold_row_zero(left: set[int], right: set[int]) -> None:
    a, b = (ItemMask(np.isin(np.arange(20), sorted(rows))) for rows in (left, right))
    assert (a & b).rows().tolist() == sorted((left & right) - {0})
    assert a.rows().tolist() == sorted(left - {0})
    assert a.count() == len(left - {0})


# Items 1..4 are of the domain, 5..9 are not; user 3 never is in it but at the first event.
OWN = np.arange(10) < 5


# Items 1..4 are of the domain, 5..9 are not; user 3 never is in it but at the first event.
EVENTS = of_users([1, 5, 2, 6, 7], [5, 6, 7, 3], [4, 5, 6])


def test_positions_are_the_labels_that_are_items_of_the_domain():
    found = domain_positions(EVENTS, "train", OWN)
    assert EVENTS.item_rows[found].tolist() == [2, 3]
    assert domain_positions(EVENTS, "train", ~OWN).tolist() == [1, 3, 4, 6, 7, 10, 11]


def test_windows_without_a_label_of_the_domain_are_left_out():
    kept = domain_windows(EVENTS, training_windows(EVENTS, "train", 8), OWN)
    assert kept.starts.tolist() == [0, 5]
    short = domain_windows(EVENTS, training_windows(EVENTS, "train", 2), OWN)
    # Neighbours share an event: 5 ends one window and begins the next, where it is no label.
    assert list(zip(short.starts, short.ends, strict=True)) == [(0, 3), (6, 9)]
    counted = domain_window_batch(EVENTS, kept.starts, kept.ends, OWN)
    assert counted["history.counted"].values.tolist() == [1, 0, 1, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_value_anywhere_is_found(bad: float) -> None:
    values = torch.randn(3, 101)
    assert all_finite(values)
    for place in (0, 150, 302):
        spoilt = values.clone()
        spoilt.view(-1)[place] = bad
        assert not all_finite(spoilt)
    assert all_finite(torch.empty(0, 4))
    assert not all_finite(torch.full((1,), bad))


def full_softmax_loss(scores: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The truth: cross-entropy over items 1.., scores [B, N] by item row."""
    return functional.cross_entropy(scores[:, 1:], labels - 1, label_smoothing=smoothing)


def test_every_item_gives_the_full_softmax_with_smoothing() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(5, 9), torch.tensor([1, 8, 3, 3, 5])
    candidates = every_item(9)
    label_scores = scores.gather(1, labels[:, None])[:, 0]
    unit = torch.eye(9)[candidates.rows]  # a dot product with it is the score
    loss = sampled_softmax_loss(scores, unit, candidates, labels, label_scores, 0.2)
    torch.testing.assert_close(loss, full_softmax_loss(scores, labels, 0.2))


def test_the_corrected_sum_estimates_the_full_partition_without_bias() -> None:
    """Averaged over many batches, sum exp(score - log expected) is the sum over the catalogue."""
    torch.manual_seed(1)
    counts = torch.tensor([0, 400, 200, 100, 50, 25])
    scores = torch.tensor([0.0, 0.5, -1.0, 2.0, 0.3, 1.0])
    totals = []
    for _ in range(4000):
        labels = torch.multinomial(counts.float(), 8, replacement=True)
        candidates = mixed_candidates(labels, 6, counts)
        totals.append(torch.exp(scores[candidates.rows] - candidates.log_expected).sum())
    estimate = torch.stack(totals).mean()
    torch.testing.assert_close(estimate, torch.exp(scores[1:]).sum(), rtol=0.02, atol=0)


def test_an_accidental_hit_never_stands_against_its_own_label() -> None:
    scores, counts = torch.tensor([[0.0, 3.0, 1.0], [0.0, 1.0, 2.0]]), torch.tensor([0, 1, 1])
    for rows, labels in (([0, 0, 0, 0], [1, 1, 1, 1]), ([0, 1], [1, 2])):
        own, wanted = scores[rows], torch.tensor(labels)
        candidates = mixed_candidates(wanted, 0, counts)
        label_scores = own.gather(1, wanted[:, None])[:, 0]
        unit = torch.eye(3)[candidates.rows]
        loss = sampled_softmax_loss(own, unit, candidates, wanted, label_scores)
        truth = full_softmax_loss(own, wanted, 0.0) if len(rows) == 2 else torch.tensor(0.0)
        torch.testing.assert_close(loss, truth)
