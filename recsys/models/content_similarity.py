"""Content similarity: items that read like what the user took lately.

A history's events are averaged, the r-th latest counting r ** -history_power, and every item scores
its cosine to that mean. It needs no events of the item, so it also finds items without events.

Embeddings of one shop's items are alike in a few directions (what all of them share, their broad
kinds), which drown the rest. So vectors are centred and whitened first: each direction is scaled
by how little the catalogue varies along it, less so where few items speak for many directions.
Of wide embeddings the directions along which it varies most are kept.

Axes: B queries, M history values of a batch, N item rows, F width of the content embeddings, V of
the compared vectors, at most ``MAX_DIRECTIONS``.
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import JaggedBatch, all_finite
from recsys.data.threads import side_by_side
from recsys.data.top_k import ItemMask, OneList, best_of_one
from recsys.kernels.one_query.op import SimilarOfOne, Step, best_allowed, list_of_one
from recsys.models.configs import ContentSimilarityConfig, without_removed

NORM_FLOOR = 1e-6
MAX_HISTORY = 50
"""Latest events of a history that count."""
MAX_DIRECTIONS = 512
"""Width of the compared vectors: a server reads all of them for each list of a large catalogue."""
BLOCK = 1 << 14
"""Items that are whitened at a time."""
PAIRS_UP_TO = 4096
"""Items of which the cosines of every two are kept for single queries, in at most 64 MiB: fifty
rows of them are a seventh of what all vectors are, and leave the cache to other models."""


class Whitening(NamedTuple):
    """Map from content to the compared vectors; fitted once, and kept where a catalogue grows."""

    mean: Tensor
    """[F] of all items with content."""
    directions: Tensor
    """[F, V], multiplies content less its mean."""

    def to(self, device: torch.device | str) -> Whitening:
        return Whitening(self.mean.to(device), self.directions.to(device))

    def apply(self, content: Tensor) -> Tensor:
        """Turn content [N, F] into unit vectors, [N, V]; rows of zeros stay."""
        whole = torch.empty(len(content), self.directions.shape[1], device=content.device)
        # A block's steps stay in the cache: two thirds of the time, and a third of the memory.
        blocks = zip(torch.split(content, BLOCK), torch.split(whole, BLOCK), strict=True)
        side_by_side(lambda block: self._apply(*block), blocks)
        return whole

    def _apply(self, content: Tensor, out: Tensor) -> None:
        vectors = (content.float() - self.mean) @ self.directions
        known = (content != 0).any(1)
        # As functional.normalize does, without another copy.
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
        torch.div(vectors, lengths, out=out).mul_(known[:, None])

    @classmethod
    def fit(cls, content: Tensor) -> Whitening:
        """Look at all items with content, [N, F]."""
        known = content[(content != 0).any(1)].double()
        width = content.shape[1]
        mean = known.sum(0) / max(1, len(known))
        if len(known) < 2:
            return cls(mean.float(), torch.eye(width, device=content.device))
        apart = known - mean
        covariance = apart.T @ apart / len(known)
        spread, axes = _eigen(covariance, len(known))
        if spread.max() <= NORM_FLOOR**2:  # every item says the same, so nothing is evidence
            return cls(mean.float(), torch.zeros(width, width, device=content.device))
        # Few items say little of many directions, so there all count more alike.
        spread = spread + spread.mean() * width / len(known)
        scale = spread.clamp_min(1e-4 * spread.max()) ** -0.5
        if width > MAX_DIRECTIONS:  # the last ones are those that vary most
            return cls(mean.float(), (axes * scale)[:, -MAX_DIRECTIONS:].float())
        # Back in the embeddings' own axes, so that a sign of an axis decides nothing.
        return cls(mean.float(), (axes * scale @ axes.T).float())


def _eigen(covariance: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """Decompose a covariance of any rank: eigenvalues [F], eigenvectors [F, F].

    LAPACK's eigensolver may not converge on a singular matrix, where rounding errors shrink from
    step to step to denormal numbers. A multiple of the identity gives such a matrix full rank and
    leaves its eigenvectors as they are. Up to F items always make a singular one; more may, where
    texts repeat or columns are constant.
    """
    width = len(covariance)
    spread: Tensor
    axes: Tensor
    if num_items > width:
        with suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            spread, axes = torch.linalg.eigh(covariance)
            return spread, axes
    shift = covariance.diagonal().sum() / num_items
    identity = torch.eye(width, dtype=covariance.dtype, device=covariance.device)
    spread, axes = torch.linalg.eigh(covariance + shift * identity)
    return spread - shift, axes


class ContentSimilarity:
    """Scores items by the cosine of their content to the mean of the user's latest items."""

    def __init__(
        self,
        config: ContentSimilarityConfig,
        content: Tensor,
        *,
        whitening: Whitening | None = None,
    ) -> None:
        """Take the catalogue's content.

        Args:
            content: Content embeddings, [N, F]; rows of zeros (row 0, items without text) have no
                content.
            whitening: What is done to every vector; None fits it to ``content``. A catalogue that
                has grown keeps the one it had.
        """
        if not all_finite(content):
            row = int((~torch.isfinite(content)).any(1).nonzero()[0])
            raise ValueError(f"content of item row {row} is not finite; embed the items again")
        assert not isinstance(config.columns, tuple), "fit_content chooses one number"
        content = content.detach()[:, : config.columns].float()
        if bool(content[0].any()):
            content = content.clone()
            content[0] = 0
        if whitening is None:
            whitening = Whitening.fit(content)
        whitening = whitening.to(content.device)
        if len(whitening.mean) != content.shape[1]:
            raise ValueError(
                f"the whitening is of embeddings of width {len(whitening.mean)}, the content's is "
                f"{content.shape[1]}; fit it to this content, or embed the items as before"
            )
        self.config = config
        self.whitening = whitening
        self.has_content = (content != 0).any(1)  # [N]
        self.vectors = self.whitening.apply(content)

    @property
    def num_item_rows(self) -> int:
        return len(self.vectors)

    @property
    def settings(self) -> dict[str, object]:
        """Return what validation chose."""
        return {"columns": self.config.columns}

    def all_item_vectors(self) -> Tensor:
        """Return the compared vectors, [N, V]; rows of zeros have no content."""
        return self.vectors

    def grown(self, content: Tensor) -> ContentSimilarity:
        """Append the items whose content [N', F] follows that of these."""
        num_before = len(self.vectors)
        # Row 0 of the added vectors is no item.
        added = ContentSimilarity(self.config, content[num_before - 1 :], whitening=self.whitening)
        grown = copy.copy(self)
        grown.vectors = torch.cat([self.vectors, added.vectors[1:]])
        grown.has_content = torch.cat([self.has_content, added.has_content[1:]])
        return grown

    def query_vectors(self, queries: JaggedBatch) -> Tensor:
        """Average each history as a unit vector, [B, V]; 0 where none of it has content."""
        history = queries["history"]
        query = history.segments()  # [M]
        place = torch.arange(len(query), device=query.device)
        recency = history.offsets[1:][query] - place  # 1 is the latest
        inside = (history.values >= 0) & (history.values < self.num_item_rows)
        known = inside & (recency <= MAX_HISTORY)
        weight = recency[known].float() ** -self.config.history_power
        events = self.vectors[history.values[known]] * weight[:, None]
        total = events.new_zeros(queries.batch_size, self.vectors.shape[1])
        total.index_add_(0, query[known], events)
        return functional.normalize(total, dim=1, eps=NORM_FLOOR)

    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item for each query, [B, N].

        -inf means no evidence: the item has no content, or nothing in the history has any.
        """
        vectors = self.query_vectors(queries)
        scores = vectors @ self.vectors.T
        silent = ~(vectors != 0).any(1)
        return scores.masked_fill_(silent[:, None] | ~self.has_content, -torch.inf)

    def to(self, device: torch.device | str) -> ContentSimilarity:
        self.vectors, self.whitening = self.vectors.to(device), self.whitening.to(device)
        self.has_content = self.has_content.to(device)
        return self

    def save(self, directory: Path) -> None:
        """Write settings and whitening; the vectors too, so that loading needs nothing else."""
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {
                **{name: part.contiguous() for name, part in self.whitening._asdict().items()},
                "vectors": self.vectors,
                "has_content": self.has_content,
            },
            directory / "content_similarity.safetensors",
        )
        (directory / "config.json").write_text(json.dumps(asdict(self.config), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path, content: Tensor | None = None) -> ContentSimilarity:
        """Read what `save` wrote.

        Args:
            content: Embeddings of a catalogue that has grown since, [N, F]; None takes the saved
                vectors.
        """
        document = json.loads((directory / "config.json").read_text())
        fixed = {"max_history": MAX_HISTORY, "whitening": 1.0}
        config = ContentSimilarityConfig(**without_removed(document, fixed, directory))
        tensors = load_file(directory / "content_similarity.safetensors")
        whitening = Whitening(*(tensors[name] for name in Whitening._fields))
        if content is not None:
            return cls(config, content, whitening=whitening)
        model = cls(config, torch.zeros(1, len(whitening.mean)), whitening=whitening)
        model.vectors, model.has_content = tensors["vectors"], tensors["has_content"]
        return model


class OneContentHistory:
    """``ContentSimilarity.score`` for one history at a time; the model must not change."""

    def __init__(self, model: ContentSimilarity) -> None:
        self._vectors = model.vectors
        self._silent = (~model.has_content).nonzero()[:, 0].numpy()
        recency = torch.arange(MAX_HISTORY, 0, -1)
        self._weights = recency.float() ** -model.config.history_power
        self._num_events, self._num_items = len(self._weights), len(self._vectors)

    @cached_property
    def _columns(self) -> Tensor:
        """All vectors, [V, N]."""
        # For one query a product with columns takes a third to a half of the time of one with rows.
        return self._vectors.T.contiguous()

    def query_vector(self, item_rows: Tensor) -> Tensor:
        """Average a history as a unit vector, [V]; 0 where none of it has content.

        Args:
            item_rows: Rows of the catalogue, oldest first, at least one.
        """
        latest = item_rows[-self._num_events :]
        total = self._weights[-latest.shape[0] :] @ self._vectors.index_select(0, latest)  # [V]
        return total / max(float(torch.linalg.vector_norm(total)), NORM_FLOOR)

    def scores(self, item_rows: Tensor) -> Tensor:
        """Score every item, [N]; -inf where there is no content."""
        vector = self.query_vector(item_rows)
        scores = vector @ self._columns
        scores.numpy()[self._silent] = -torch.inf
        return scores if bool(vector.any()) else scores.fill_(-torch.inf)

    def best(self, item_rows: Tensor, mask: ItemMask, k: int) -> OneList:
        """Rank the items with content that a mask allows."""
        if (step := self.step(item_rows)) is not None:
            found = list_of_one(step, mask, k)
            if found is not None:
                return found
        scores = self.scores(item_rows)
        if (found := best_allowed(scores.numpy(), mask, k)) is not None:
            return found
        mask.blank(scores.numpy())
        return best_of_one(scores, k)

    def step(self, item_rows: Tensor) -> Step | None:
        """Do what `best` does as a step of one compiled call; None of many items."""
        return self._compiled.step(item_rows) if self._num_items <= PAIRS_UP_TO else None

    @cached_property
    def _compiled(self) -> SimilarOfOne:
        cosines = self._vectors @ self._columns  # of every two items, [N, N]
        return SimilarOfOne(cosines, self._silent, NORM_FLOOR, self._weights)
