"""An OpenAI-compatible embeddings endpoint as an encoder of texts; every reply is checked.

Axes: n texts, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from recsys.content.config import EmbeddingEndpointConfig
from recsys.content.encoder import Vectors, encodable, normalized
from recsys.content.endpoint import Endpoint
from recsys.content.prompt import EndpointError


class EndpointEncoder:
    """Encodes texts by an endpoint; empty ones are zeros and cost nothing."""

    def __init__(self, config: EmbeddingEndpointConfig, endpoint: Endpoint | None = None) -> None:
        self._config = config
        self._endpoint = endpoint or Endpoint(config)
        self.name = f"{self._endpoint.name}-{config.dim}-{config.max_text_chars}"
        self.dim = config.dim
        self.shard_rows, self.concurrency = config.batch_size, config.concurrency

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        """Encode, [n, D]."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for begin in range(0, len(texts), self._config.batch_size):
            end = min(begin + self._config.batch_size, len(texts))
            rows = [row for row in range(begin, end) if texts[row].strip()]
            if rows:
                sent = encodable([texts[row][: self._config.max_text_chars] for row in rows])
                vectors[rows] = self._checked(self._endpoint.embed(sent))
            if progress is not None:
                progress(end)
        return normalized(vectors)

    def _checked(self, embeddings: list[Any]) -> Vectors:
        """Turn a reply into [n, D] finite numbers, none of them a row of zeros."""
        for place, embedding in enumerate(embeddings):
            if not isinstance(embedding, list) or len(embedding) != self.dim:
                given = len(embedding) if isinstance(embedding, list) else type(embedding).__name__
                raise EndpointError(
                    f"{self._endpoint.name} gave a vector of width {given} for text {place} of the "
                    f"batch, dim = {self.dim} is configured; correct dim or the model's name"
                )
        try:
            with np.errstate(over="ignore"):
                vectors = np.array(embeddings, np.float32)
        except (TypeError, ValueError, OverflowError):
            raise EndpointError(
                f"{self._endpoint.name} gave vectors that hold no numbers"
            ) from None
        bad = ~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1)
        if np.any(bad):
            raise EndpointError(
                f"{self._endpoint.name} gave a vector of zeros, NaN or infinity for "
                f"{int(np.sum(bad))} of {len(embeddings)} texts; nothing of this batch was kept"
            )
        return vectors
