"""A ranker's weights folded to score a query's candidates on a CPU in few, wide products.

With 300 candidates an operator's call costs as much as its arithmetic, so everything that does not
depend on the request is precomputed, and the rest is fused:

- a candidate's key and the query's are one product: q(c) . k = c . (W_q^T k) + b_q . k;
- the norm before experts, whose only layers are linear without bias and rectifier, is one number of
  a row: relu(W (s x)) = s relu(W x) for s > 0. Its weights go into the experts', its number into
  the row's routing weights;
- few experts are two products over all of them, with weight 0 where a row does not visit one: four
  times the operations of a sparse product in less time, since a wide product runs at four times
  the rate and needs no sorting;
- heads are two products for all tasks.

Scores equal training's up to rounding. Not used with adapters or on other devices.

Axes: N item rows, C candidates of a tile, D width of a field, W width of all fields, E experts, F
their inner width, T tasks, P places of a history.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from recsys.layers.attention.target import TargetAttention
from recsys.layers.cross import CrossNetwork
from recsys.layers.moe.layer import SparseMoe
from recsys.layers.moe.routing import Routing
from recsys.layers.wide_linear import WideLinear, wide_product, wide_product_onto
from recsys.models.ranker.network import Correction, Heads, Reader, Trunk

MOST_EXPERTS = 4
"""Maximum experts per visited expert, up to which all of them are multiplied."""


class Layers(NamedTuple):
    """The layers of a ranker that candidates go through."""

    attention: TargetAttention
    correction: Correction | None
    candidate_dense: nn.Linear | None
    cross: CrossNetwork
    trunk: Trunk
    heads: Heads

    def folded(self) -> tuple[nn.Module, ...]:
        """Give the layers whose weights are folded."""
        return self.attention, self.cross, self.trunk, self.heads


class FoldedReader(NamedTuple):
    """An encoded query, [P] places of its history."""

    keys: Tensor
    """[D, P], in the candidates' space."""
    offsets: Tensor
    """[P], -inf where there is no event."""
    values: Tensor
    """[P, D]."""
    fields: Tensor
    """[1, W - ...]."""


class _Experts(NamedTuple):
    """All experts of a trunk, concatenated."""

    up: Tensor
    """[E F, W]."""
    down: Tensor
    """[W, E F]."""
    weights: Tensor
    """[N, E], of each item's routing; 0 where it does not visit."""
    eps: float


class FoldedRanker:
    """Scores tiles of candidates; made by ``folded``."""

    def __init__(self, model: Layers, items: Tensor, routing: Routing | None) -> None:
        """Fold the weights; they must not change afterwards.

        Args:
            items: Fields of all items, [N, D].
            routing: Of all items, where the trunk is sparse.
        """
        self._items = items
        self._attention, self._correction = model.attention, model.correction
        self._dense, self._trunk = model.candidate_dense, model.trunk
        self._cross = [cast("WideLinear", layer) for layer in model.cross.layers]
        self._experts = None if routing is None else _side_by_side(model.trunk, routing)
        first, last = model.heads.linear(0), model.heads.linear(2)
        self._hidden = (
            torch.cat([one.weight for one in first]),
            torch.cat([one.bias for one in first]),
        )
        self._last = (
            _block_diagonal([one.weight[0] for one in last]).T.contiguous(),
            torch.cat([one.bias for one in last]),
        )
        self._watched = [one for part in model.folded() for one in part.modules()]

    def is_bare(self) -> bool:
        """Check that no adapter corrects a layer, by a hook or a replaced forward."""
        return not any(one._forward_hooks or "forward" in vars(one) for one in self._watched)

    def read(self, reader: Reader) -> FoldedReader:
        """Fold one query's keys, [1, P, A], into the candidates' space."""
        history, query = reader.history, self._attention.query
        keys = history.keys[0] * history.keys.shape[2] ** -0.5  # [P, A]
        offsets = history.mask[0, 0] + keys @ query.bias
        return FoldedReader((keys @ query.weight).T, offsets, history.values[0], reader.fields)

    def logits(self, reader: FoldedReader, rows: Tensor, dense: Tensor | None) -> Tensor:
        """Predict a tile of candidates, [C, T].

        Args:
            rows: Known item rows, [C].
            dense: Their features, [C, F of a candidate].
        """
        own = self._items.index_select(0, rows)  # [C, D]
        read = torch.addmm(reader.offsets, own, reader.keys).softmax(1).mm(reader.values)
        fields, corrected = [own, read, reader.fields.expand(len(rows), -1)], None
        if self._correction is not None and dense is not None:
            base, dense = self._correction.base(dense), self._correction.standardised(dense)
            corrected = base + self._correction(dense)
        if self._dense is not None and dense is not None:
            fields.append(self._dense(dense))
        together = torch.cat(fields, dim=1)  # [C, W]
        crossed = together
        for layer in self._cross:
            product = wide_product(crossed, layer.weight, layer.bias)
            crossed = torch.addcmul(crossed, together, product)
        each = self._mixed(crossed, rows)
        # A third of the time of addmm, which is slow for so few columns.
        logits = nn.functional.linear(
            wide_product(each, *self._hidden, rectified=True), self._last[0], self._last[1]
        )
        return logits if corrected is None else logits + corrected

    def _mixed(self, crossed: Tensor, rows: Tensor) -> Tensor:
        """Run the trunk, [C, W] -> [C, W]."""
        experts, count, width = self._experts, *crossed.shape
        if experts is None:
            first, _, last = cast("tuple[WideLinear, nn.ReLU, WideLinear]", self._trunk.body)
            hidden = wide_product(self._trunk.norm(crossed), first.weight, first.bias, True)
            return wide_product_onto(hidden, last.weight, last.bias, crossed)
        length = torch.linalg.vector_norm(crossed, dim=1, keepdim=True)
        scale = (length.square_() / width).add_(experts.eps).rsqrt_()  # [C, 1]
        hidden = wide_product(crossed, experts.up, None, rectified=True)  # [C, E F]
        weights = experts.weights.index_select(0, rows).mul_(scale)  # [C, E]
        hidden.view(count, weights.shape[1], -1).mul_(weights[:, :, None])
        return wide_product_onto(hidden, experts.down, None, crossed)


def _block_diagonal(columns: list[Tensor]) -> Tensor:
    """Arrange columns [F] as the blocks of a block-diagonal matrix, [T F, T]."""
    rows = [torch.zeros(len(one), len(columns)) for one in columns]
    for place, column in enumerate(columns):
        rows[place][:, place] = column
    return torch.cat(rows)


def _side_by_side(trunk: Trunk, routing: Routing) -> _Experts:
    body = cast("SparseMoe", trunk.body).experts
    num_experts, hidden_dim, width = body.up.shape
    weights = routing.weights.new_zeros(len(routing.experts), num_experts)
    eps = trunk.norm.eps
    return _Experts(
        up=(body.up * trunk.norm.weight).reshape(num_experts * hidden_dim, width),
        down=body.down.permute(1, 0, 2).reshape(width, num_experts * hidden_dim),
        weights=weights.scatter_(1, routing.experts, routing.weights),
        eps=torch.finfo(torch.float32).eps if eps is None else eps,
    )


def folded(model: Layers, items: Tensor, routing: Routing | None) -> FoldedRanker | None:
    """Fold a ranker's weights; None on other devices or for other architectures.

    Args:
        items: Fields of all items, [N, D].
        routing: Of all items, where a router reads items alone.
    """
    body = model.trunk.body
    if isinstance(body, SparseMoe):
        few = body.config.num_experts <= MOST_EXPERTS * body.config.top_k
        fits = routing is not None and body.shared is None and few
    else:
        fits = isinstance(body, nn.Sequential)
    weights = [weight for part in model.folded() for weight in part.parameters()]
    plain = all(one.device.type == "cpu" and one.dtype == torch.float32 for one in weights)
    if not (fits and plain and _is_full_rank(model.cross)):
        return None
    return FoldedRanker(model, items, routing)


def _is_full_rank(cross: CrossNetwork) -> bool:
    return all(isinstance(layer, WideLinear) for layer in cross.layers)
