"""What every retriever promises, as one assertion that a test of any retriever calls.

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


@torch.no_grad()
def assert_retriever_contract(
    fit: Callable[[int], Retriever],
    load: Callable[[Path], Retriever],
    queries: JaggedBatch,
    num_item_rows: int,
    directory: Path,
) -> None:
    """Hold what every retriever promises.

    Scores are [B, N] float32; row 0 is never recommended, and no score is NaN or +inf. Unknown
    users and items and empty histories are scored like any other query. A query's scores do not
    depend on its neighbours in the batch, within 1e-5. One seed gives one model, to the last bit.
    A saved model comes back with the same scores, from files without code.

    Args:
        fit: Seed -> a fitted retriever.
        load: Reads what ``save`` wrote.
        queries: A valid query batch.
        directory: An empty folder to write in.
    """
    retriever = fit(7)
    unknown = {
        name: feature._replace(values=torch.zeros_like(feature.values))
        for name, feature in queries.features.items()
    }
    empty = {"history": Jagged.from_lists([[] for _ in range(queries.batch_size)])}
    for asked in (queries, JaggedBatch(unknown), JaggedBatch({**unknown, **empty})):
        _check_scores(retriever.score(asked), queries.batch_size, num_item_rows)

    scores = retriever.score(queries)
    for index in range(queries.batch_size):
        alone = retriever.score(_only(queries, index))
        torch.testing.assert_close(alone[0], scores[index], rtol=1e-5, atol=1e-5)
    assert torch.equal(fit(7).score(queries), scores), "scores differ between two fits of one seed"

    retriever.save(directory / "saved")
    loaded = load(directory / "saved")
    assert torch.equal(loaded.score(queries), scores), "scores differ after a save and a load"
    loaded.save(directory / "again")
    for path in (directory / "saved").rglob("*"):
        if path.is_file():
            assert path.suffix in {".safetensors", ".npy", ".json"}, f"unexpected file {path}"
            again = directory / "again" / path.relative_to(directory / "saved")
            assert path.read_bytes() == again.read_bytes(), f"{path.name} differs when saved again"


def _check_scores(scores: Tensor, num_queries: int, num_item_rows: int) -> None:
    assert scores.shape == (num_queries, num_item_rows), tuple(scores.shape)
    assert scores.dtype == torch.float32, scores.dtype
    assert bool((scores[:, 0] == -torch.inf).all()), "row 0 is padding and must score -inf"
    assert not bool(scores.isnan().any()), "a score is NaN"
    assert not bool((scores == torch.inf).any()), "a score is +inf"


def _only(queries: JaggedBatch, index: int) -> JaggedBatch:
    """Cut one query out of a batch."""
    number = torch.tensor([index])
    return JaggedBatch({name: one.take(number) for name, one in queries.features.items()})
