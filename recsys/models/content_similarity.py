"""Content similarity: items that read like what the user took lately.

A history's events are averaged, the r-th latest counting r ** -history_power, and every item scores
its cosine to that mean. It needs no events of the item, so it also finds items nobody took yet.

Axes: B queries, M history values of a batch, N item rows, F width of the content embeddings.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import JaggedBatch

NORM_FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True)
class ContentSimilarityConfig:
    """Settings of ContentSimilarity."""

    history_power: float = 1.0
    """The r-th latest event of the history counts r ** -history_power."""
    max_history: int = 50
    centred: bool = True
    """Whether what all items have in common is taken off before vectors are compared."""

    def __post_init__(self) -> None:
        if not 0 <= self.history_power < float("inf"):
            raise ValueError(f"history_power must be >= 0 and finite, got {self.history_power}")
        if self.max_history < 1:
            raise ValueError(f"max_history must be >= 1, got {self.max_history}")


class ContentSimilarity:
    """Scores items by the cosine of their content to the mean of the user's latest items."""

    def __init__(
        self, config: ContentSimilarityConfig, content: Tensor, *, mean: Tensor | None = None
    ) -> None:
        """Take the catalogue's content.

        Args:
            config: How events are weighed.
            content: Content embeddings, [N, F]; rows of zeros (row 0, items without text) have no
                content.
            mean: What is taken off every vector, [F]; None is the mean of ``content``. A catalogue
                that has grown keeps the mean it had.

        Raises:
            ValueError: Embeddings that are not [N, F], or not finite.
        """
        if content.ndim != 2 or len(content) < 1:
            raise ValueError(f"content must be [N, F] with N >= 1, got {tuple(content.shape)}")
        if not torch.isfinite(content).all():
            row = int((~torch.isfinite(content)).any(1).nonzero()[0])
            raise ValueError(f"content of item row {row} is not finite; embed the items again")
        content = content.detach().float().clone()
        content[0] = 0
        self.config = config
        self.has_content = (content != 0).any(1)  # [N]
        number = self.has_content.sum().clamp_min(1)
        self.mean = content.sum(0) / number if mean is None else mean.float()
        if self.mean.shape != content.shape[1:]:
            raise ValueError(
                f"mean must be of the content's width {content.shape[1]}, got "
                f"{tuple(self.mean.shape)}"
            )
        if config.centred:
            content = torch.where(self.has_content[:, None], content - self.mean, 0.0)
        self.vectors = functional.normalize(content, dim=1, eps=NORM_FLOOR)

    @property
    def num_item_rows(self) -> int:
        return len(self.vectors)

    def query_vectors(self, queries: JaggedBatch) -> Tensor:
        """Average each history as a unit vector, [B, F]; 0 where none of it has content."""
        history = queries["history"]
        query = history.segments()  # [M]
        place = torch.arange(len(query), device=query.device)
        recency = history.offsets[1:][query] - place  # 1 is the latest
        inside = (history.values >= 0) & (history.values < self.num_item_rows)
        known = inside & (recency <= self.config.max_history)
        weight = recency[known].float() ** -self.config.history_power
        events = self.vectors[history.values[known]] * weight[:, None]
        total = events.new_zeros(queries.batch_size, self.vectors.shape[1])
        total.index_add_(0, query[known], events)
        return functional.normalize(total, dim=1, eps=NORM_FLOOR)

    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item for each query, [B, N].

        -inf means no evidence: the item has no content, or nothing in the history has any.
        """
        asked = self.query_vectors(queries)
        scores = asked @ self.vectors.T
        silent = ~(asked != 0).any(1)
        return scores.masked_fill_(silent[:, None] | ~self.has_content, -torch.inf)

    def to(self, device: torch.device | str) -> ContentSimilarity:
        """Move the vectors to a device, in place."""
        self.vectors, self.mean = self.vectors.to(device), self.mean.to(device)
        self.has_content = self.has_content.to(device)
        return self

    def save(self, directory: Path) -> None:
        """Write settings and mean; the vectors too, so that loading needs nothing else."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {"mean": self.mean, "vectors": self.vectors, "has_content": self.has_content}
        save_file(tensors, directory / "content_similarity.safetensors")
        (directory / "config.json").write_text(json.dumps(asdict(self.config), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path, content: Tensor | None = None) -> ContentSimilarity:
        """Read what `save` wrote.

        Args:
            directory: Where it is.
            content: Embeddings of a catalogue that has grown since, [N, F]; None takes the saved
                vectors.
        """
        config = ContentSimilarityConfig(**json.loads((directory / "config.json").read_text()))
        tensors = load_file(directory / "content_similarity.safetensors")
        if content is not None:
            return cls(config, content, mean=tensors["mean"])
        # The saved vectors are ready: made from the mean on, once.
        model = cls(config, torch.zeros_like(tensors["vectors"]), mean=tensors["mean"])
        model.vectors, model.has_content = tensors["vectors"], tensors["has_content"]
        return model
