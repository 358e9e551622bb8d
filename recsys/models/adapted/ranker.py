"""A ranker that scores candidates with the adapter of their query's domain.

An adapter corrects layers that read one row per candidate: the cross layers, a dense trunk and the
hidden layers of the heads. Items, histories and the experts of a sparse trunk are the base's, so
queries are encoded the same in every domain.

Axes: B queries, C candidates of a query, M candidates of a batch, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from recsys.layers.lora.bank import LoraBank
from recsys.layers.lora.linear import LoraAdapter
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Reader

ROW_LAYERS = ("cross.*", "trunk.body.[0-9]", "heads.*.0")


def ranker_targets(model: Ranker) -> tuple[str, ...]:
    """Give the default targets of a ranker's adapters, those of ``ROW_LAYERS`` that it has."""
    linear = [name for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    return tuple(
        pattern for pattern in ROW_LAYERS if any(fnmatchcase(name, pattern) for name in linear)
    )


def check_row_layers(adapter: LoraAdapter) -> None:
    """Check that an adapter corrects only layers that read one row per candidate.

    Raises:
        ValueError: If not; names the layer.
    """
    for name in (*adapter.layers, *adapter.tables):
        if not any(fnmatchcase(name, pattern) for pattern in ROW_LAYERS):
            raise ValueError(
                f"an adapter corrects {name!r}, which does not read candidates row by row; a "
                f"ranker's adapter may correct {', '.join(ROW_LAYERS)}: train it with those targets"
            )


class AdaptedRanker:
    """A ranker with the adapters of several domains."""

    def __init__(self, model: Ranker, adapters: Mapping[str, LoraAdapter]) -> None:
        """Put adapters into a ranker; without a domain it computes what it did.

        Args:
            adapters: By domain, made for this ranker.

        Raises:
            ValueError: If an adapter is for another base, or corrects another kind of layer.
        """
        for adapter in adapters.values():
            check_row_layers(adapter)
        self.model = model
        self._bank = LoraBank(model, adapters)

    def knows(self, domain: str | None) -> bool:
        """Check whether a domain has an adapter."""
        return domain in self._bank

    @torch.no_grad()
    def score_candidates(
        self, reader: Reader, rows: Tensor, dense: Tensor | None, domain: str | None
    ) -> Tensor:
        """Score candidates of one query by tiles, [C] -> [C]; arguments as of the ranker."""
        with self._bank.choose(domain):
            return self.model.score_candidates(reader, rows, dense)
