"""What every retriever promises, as assertions that a test of any retriever calls.

Axes: B queries, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch


class Retriever(Protocol):
    """A model that scores the whole catalogue."""

    def score(self, queries: JaggedBatch) -> Tensor: ...

    def save(self, directory: Path) -> None: ...


def assert_scores_every_item(
    retriever: Retriever, queries: JaggedBatch, num_item_rows: int
) -> None:
    """Hold that scores are [B, N] float32, row 0 is never recommended, and none is NaN or +inf."""
    with torch.no_grad():
        scores = retriever.score(queries)
    assert scores.shape == (queries.batch_size, num_item_rows), tuple(scores.shape)
    assert scores.dtype == torch.float32, scores.dtype
    assert bool((scores[:, 0] == -torch.inf).all()), "row 0 is padding and must score -inf"
    assert not bool(scores.isnan().any()), "a score is NaN"
    assert not bool((scores == torch.inf).any()), "a score is +inf"


def assert_unknown_input_is_scored(
    retriever: Retriever, queries: JaggedBatch, num_item_rows: int
) -> None:
    """Hold that unknown users, unknown items and empty histories are scored like any other query.

    Args:
        queries: A valid query batch; its history and single-valued features are replaced.
    """
    num_queries = queries.batch_size
    unknown_rows = {
        name: feature._replace(values=torch.zeros_like(feature.values))
        for name, feature in queries.features.items()
    }
    empty = Jagged.from_lists([[] for _ in range(num_queries)])
    assert_scores_every_item(retriever, JaggedBatch(unknown_rows), num_item_rows)
    assert_scores_every_item(
        retriever, JaggedBatch({**unknown_rows, "history": empty}), num_item_rows
    )


def assert_queries_are_independent(retriever: Retriever, queries: JaggedBatch) -> None:
    """Hold that a query's scores do not depend on its neighbours in the batch, within 1e-5."""
    with torch.no_grad():
        together = retriever.score(queries)
        for index in range(queries.batch_size):
            alone = retriever.score(_only(queries, index))
            torch.testing.assert_close(alone[0], together[index], rtol=1e-5, atol=1e-5)


def assert_save_and_load_round_trip(
    retriever: Retriever,
    load: Callable[[Path], Retriever],
    queries: JaggedBatch,
    directory: Path,
) -> None:
    """Hold that a loaded retriever gives the same scores to the last bit, from files without code.

    Args:
        load: Reads what ``save`` wrote.
        directory: An empty folder to write in.
    """
    retriever.save(directory / "saved")
    loaded = load(directory / "saved")
    with torch.no_grad():
        same = torch.equal(retriever.score(queries), loaded.score(queries))
    assert same, "scores differ after a save and a load"
    suffixes = {path.suffix for path in (directory / "saved").rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".npy", ".json"}, f"unexpected files: {sorted(suffixes)}"
    loaded.save(directory / "again")
    for path in (directory / "saved").rglob("*"):
        if path.is_file():
            again = directory / "again" / path.relative_to(directory / "saved")
            assert path.read_bytes() == again.read_bytes(), f"{path.name} differs when saved again"


def assert_same_seed_same_result(fit: Callable[[int], Retriever], queries: JaggedBatch) -> None:
    """Hold that fitting twice with one seed gives the same scores to the last bit.

    Args:
        fit: Seed -> a fitted retriever.
    """
    with torch.no_grad():
        same = torch.equal(fit(7).score(queries), fit(7).score(queries))
    assert same, "scores differ between two fits with one seed"


def assert_retriever_contract(
    retriever: Retriever,
    load: Callable[[Path], Retriever],
    queries: JaggedBatch,
    num_item_rows: int,
    directory: Path,
) -> None:
    """Hold all of the above that one fitted retriever shows."""
    assert_scores_every_item(retriever, queries, num_item_rows)
    assert_unknown_input_is_scored(retriever, queries, num_item_rows)
    assert_queries_are_independent(retriever, queries)
    assert_save_and_load_round_trip(retriever, load, queries, directory)


def _only(queries: JaggedBatch, index: int) -> JaggedBatch:
    """Cut one query out of a batch."""
    features = {}
    for name, feature in queries.features.items():
        start, end = int(feature.offsets[index]), int(feature.offsets[index + 1])
        features[name] = Jagged(feature.values[start:end], torch.tensor([0, end - start]))
    return JaggedBatch(features)
