"""A retrieval model of another package: a base for it, and what every retriever promises.

Axes: B queries, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import Data, ModelSpec, Start, TrainingRun
from recsys.models.item_tower import FeatureSizes, ItemCatalogue, Over

FILES = {".safetensors", ".npy", ".json"}
CYCLE = 12
"""Items of the small world in which a model is checked."""


class TensorModel(nn.Module):
    """A model of named tensors, which it saves and loads; a subclass has ``score``."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(dict(self.named_buffers()), directory / "tensors.safetensors")

    @classmethod
    def load(cls, directory: Path, over: Over | None = None) -> Self:
        return cls(**load_file(directory / "tensors.safetensors"))


class Retriever(Protocol):
    """A model that scores the whole catalogue."""

    def score(self, queries: JaggedBatch) -> Tensor: ...

    def save(self, directory: Path) -> None: ...


def check_model(spec: ModelSpec, config: object = None) -> Any:
    """Fit a model in a small world, hold it to what the platform needs, and return it.

    In that world 40 users take the items 1 to 12 in turn, each from another start: 8 comes after
    7, and 1 after 12.

    Raises:
        ValueError: The promise of ``check_retriever`` that the model breaks.
    """
    rows = (np.arange(40)[:, None] + np.arange(8)) % CYCLE + 1  # [40, 8]
    offsets = np.arange(0, rows.size + 1, rows.shape[1])
    times = np.arange(rows.size) * 3600
    sequences = Sequences(rows.ravel(), offsets, offsets[1:], offsets[1:], times)
    catalogue, sizes = ItemCatalogue.empty(CYCLE + 1), FeatureSizes(num_item_rows=CYCLE + 1)
    data = Data(inputs=ModelInputs(sequences=sequences, catalogue=catalogue, sizes=sizes))
    settings = config or spec.config()

    def fit(seed: int) -> Any:
        fitted = spec.fit(settings, data, "train", Start(TrainingRun(seed=seed)))
        _promise(fitted is not None, "fit gives a model for 320 events of 40 users")
        return fitted and fitted.model

    queries = JaggedBatch({"history": Jagged.from_lists([[3, 4], [], [7]])})
    with TemporaryDirectory() as folder:
        return check_retriever(
            fit, lambda place: spec.load(place, data.over), queries, CYCLE + 1, Path(folder)
        )


@torch.no_grad()
def check_retriever(
    fit: Callable[[int], Retriever],
    load: Callable[[Path], Retriever],
    queries: JaggedBatch,
    num_item_rows: int,
    directory: Path,
) -> Retriever:
    """Hold a retriever to its promises, and return it.

    Args:
        fit: Seed -> a fitted retriever.
        load: Reads what ``save`` wrote.
        queries: A valid query batch.
        directory: An empty folder to write in.

    Raises:
        ValueError: The promise that it breaks.
    """
    retriever, size = fit(7), queries.batch_size
    unknown = {
        name: feature._replace(values=torch.zeros_like(feature.values))
        for name, feature in queries.features.items()
    }
    empty = {"history": Jagged.from_lists([[] for _ in range(size)])}
    for batch in (queries, JaggedBatch(unknown), JaggedBatch({**unknown, **empty})):
        found = retriever.score(batch)
        _promise(found.shape == (size, num_item_rows), "scores are [queries, item rows]")
        _promise(found.dtype == torch.float32, "scores are float32")
        _promise(bool((found[:, 0] == -torch.inf).all()), "row 0 is padding and scores -inf")
        _promise(not bool((found.isnan() | found.isposinf()).any()), "no score is NaN or +inf")

    scores = retriever.score(queries)
    for index in range(size):
        number = torch.tensor([index])
        one = JaggedBatch({name: each.take(number) for name, each in queries.features.items()})
        alone = torch.allclose(retriever.score(one)[0], scores[index], rtol=1e-5, atol=1e-5)
        _promise(alone, "a query's scores do not depend on its neighbours in the batch")
    _promise(torch.equal(fit(7).score(queries), scores), "two fits of one seed score the same")

    retriever.save(directory / "saved")
    loaded = load(directory / "saved")
    _promise(torch.equal(loaded.score(queries), scores), "a loaded model scores the same")
    loaded.save(directory / "again")
    for path in filter(Path.is_file, (directory / "saved").rglob("*")):
        copy = directory / "again" / path.relative_to(directory / "saved")
        _promise(path.suffix in FILES, f"files are of {sorted(FILES)}, not {path.name}")
        _promise(path.read_bytes() == copy.read_bytes(), f"{path.name} is saved the same again")
    return retriever


def _promise(kept: bool, promise: str) -> None:
    if not kept:
        raise ValueError(f"a retriever promises that {promise}; this one breaks it")
