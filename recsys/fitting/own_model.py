"""A model of another package: a base for it, and the promises of every retriever.

Axes: B queries, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

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


def check_model(spec: ModelSpec, config: object = None) -> Any:
    """Fit a model in a small world, check it as a retriever, and return it.

    In that world 40 users take the items 1 to 12 in turn: 8 comes after 7, and 1 after 12.
    """
    rows = (np.arange(40)[:, None] + np.arange(8)) % CYCLE + 1  # [40, 8]
    offsets, times = np.arange(0, rows.size + 1, 8), np.arange(rows.size) * 3600
    sequences = Sequences(rows.ravel(), offsets, offsets[1:], offsets[1:], times)
    catalogue, sizes = ItemCatalogue.empty(CYCLE + 1), FeatureSizes(num_item_rows=CYCLE + 1)
    data = Data(inputs=ModelInputs(sequences=sequences, catalogue=catalogue, sizes=sizes))

    def fit(seed: int) -> Any:
        start = Start(TrainingRun(seed=seed))
        fitted = spec.fit(config or spec.config(), data, "train", start)
        _promise(fitted is not None, "fit gives a model for 320 events of 40 users")
        return fitted and fitted.model

    def load(folder: Path) -> Any:
        return spec.load(folder, data.over)

    queries = JaggedBatch({"history": Jagged.from_lists([[3, 4], [], [7]])})
    with TemporaryDirectory() as folder:
        return check_retriever(fit, load, queries, CYCLE + 1, Path(folder))


@torch.no_grad()
def check_retriever(
    fit: Callable[[int], Any],
    load: Callable[[Path], Any],
    queries: JaggedBatch,
    num_item_rows: int,
    directory: Path,
) -> Any:
    """Hold the retriever that ``fit`` makes of a seed to its promises, and return it.

    Args:
        load: Reads what its ``save`` wrote, here below ``directory``.

    Raises:
        ValueError: The promise that it breaks.
    """
    retriever, size = fit(7), queries.batch_size
    unknown = {
        name: one._replace(values=torch.zeros_like(one.values))
        for name, one in queries.features.items()
    }
    empty = {"history": Jagged.from_lists([[]] * size)}
    for batch in (queries, JaggedBatch(unknown), JaggedBatch({**unknown, **empty})):
        scores = retriever.score(batch)
        _promise(scores.shape == (size, num_item_rows), "scores are [queries, item rows]")
        _promise(scores.dtype == torch.float32, "scores are float32")
        _promise(bool((scores[:, 0] == -torch.inf).all()), "row 0 is padding and scores -inf")
        _promise(bool((scores < torch.inf).all()), "no score is NaN or +inf")
    scores = retriever.score(queries)
    for index in range(size):
        taken = {name: one.take(torch.tensor([index])) for name, one in queries.features.items()}
        alone = torch.allclose(retriever.score(JaggedBatch(taken))[0], scores[index], 1e-5, 1e-5)
        _promise(alone, "scores of a query do not depend on others in its batch")
    _promise(torch.equal(fit(7).score(queries), scores), "two fits of one seed score the same")
    first, second = directory / "saved", directory / "copy"
    retriever.save(first)
    loaded = load(first)
    _promise(torch.equal(loaded.score(queries), scores), "a loaded model scores the same")
    loaded.save(second)
    for path in filter(Path.is_file, first.rglob("*")):
        _promise(path.suffix in FILES, f"files are of {sorted(FILES)}, not {path.name}")
        copy = (second / path.relative_to(first)).read_bytes()
        _promise(copy == path.read_bytes(), f"{path.name} is the same if it is saved again")
    return retriever


def _promise(kept: bool, promise: str) -> None:
    if not kept:
        raise ValueError(f"a retriever promises that {promise}; this one does not keep it")
