"""A ranker's weights folded to score a query's candidates on a CPU in few, wide products.

With 300 candidates an operator's call costs as much as its arithmetic, so everything that does not
depend on the request is precomputed, and the rest is fused:

- a candidate's key and the query's are one product: q(c) . k = c . (W_q^T k) + b_q . k, and k is
  linear in an event's vector, so the events are folded by one small product too;
- the norm before experts, whose only layers are linear without bias and rectifier, is one number of
  a row: relu(W (s x)) = s relu(W x) for s > 0. Its weights go into the experts', its number into
  the row's routing weights;
- few experts are two products over all of them, with weight 0 where a row does not visit one: four
  times the operations of a sparse product in less time, since a wide product runs at four times
  the rate and needs no sorting;
- heads are two products for all tasks; features of candidates give a field and the correction of
  the base score by one.

A tile is laid out with a column for each candidate, so that sums over a row's width, biases and
routing weights run along the memory. Products and bounds are torch's, the steps between numpy's,
into arrays that are kept: to start an operation costs numpy a third of what it costs torch.

Scores equal training's up to rounding. Not used with adapters or on other devices.

Axes: N item rows, C candidates of a tile, D width of a field, W width of all fields, E experts, F
their inner width, T tasks, P places of a history, G features of a candidate.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recsys.kernels.one_query.ranker_op import NetworkOfOne, filled_up, panels
from recsys.layers.attention.target import TargetAttention
from recsys.layers.moe.layer import SparseMoe
from recsys.layers.moe.routing import Routing
from recsys.layers.wide_linear import CrossNetwork, WideLinear
from recsys.models.ranker.network import MAX_STANDARDISED, Correction, Heads, QueryReader, Trunk

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
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
        return self.attention, self.cross, self.trunk, self.heads


class FoldedReader(NamedTuple):
    """An encoded query, [P] places of its history."""

    keys: Tensor
    """[P, D], in the candidates' space."""
    offsets: Floats
    """[P, 1], -inf where there is no event."""
    values: Tensor
    """[D, P]."""
    fields: Floats
    """[W - ..., 1]."""


class _Linear(NamedTuple):
    """A product and its bias."""

    weight: Tensor
    """[O, I]."""
    bias: Floats
    """[O, 1]."""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> _Linear:
        kept = weight.detach().float().contiguous()
        return cls(kept, bias.detach().float().numpy().reshape(-1, 1).copy())


class _Trunk(NamedTuple):
    """Experts of a trunk, concatenated, or its one network."""

    up: Tensor
    """[E F, W]."""
    up_bias: Floats | None
    """[F, 1], of the one network."""
    down: Tensor
    """[W, E F]."""
    down_bias: Floats | None
    """[W, 1]."""
    eps: float


class _Space(threading.local):
    """Arrays of a tile, kept by each thread from one tile to the next."""

    arrays: dict[str, Floats]
    tensors: dict[str, Tensor]

    def __init__(self) -> None:
        self.arrays, self.tensors = {}, {}

    def __reduce__(self) -> tuple[type[_Space], tuple[()]]:
        # A copy of a ranker makes arrays of its own.
        return _Space, ()

    def take(self, name: str, rows: int, columns: int) -> tuple[Floats, Tensor]:
        """Return an array [rows, columns] of any content, and the same memory as a tensor."""
        found = self.arrays.get(name)
        if found is None or found.shape != (rows, columns):
            found = self.arrays[name] = np.zeros((rows, columns), np.float32)
            # Written inside and outside of inference mode.
            with torch.inference_mode(mode=False):
                self.tensors[name] = torch.from_numpy(found)
        return found, self.tensors[name]


class FoldedRanker:
    """Scores tiles of candidates; made by ``folded``."""

    def __init__(self, model: Layers, items: Tensor, routing: Routing | None) -> None:
        """Fold the weights; they must not change afterwards.

        Args:
            items: Fields of all items, [N, D].
        """
        self._items: Floats = items.numpy()
        # Beside an item's field stands its routing: both are looked up at once.
        table = [items]
        if routing is not None:
            num_experts = cast("SparseMoe", model.trunk.body).config.num_experts
            weights = routing.weights.new_zeros(len(routing.experts), num_experts)
            table.append(weights.scatter_(1, routing.experts, routing.weights))
        self._table: Floats = torch.cat(table, dim=1).detach().numpy()
        self._fold_attention(model.attention)
        self._fold_dense(model)
        self._cross = [
            _Linear.of(one.weight, one.bias)
            for one in (cast("WideLinear", layer) for layer in model.cross.layers)
        ]
        self._trunk = _folded_trunk(model.trunk)
        first, last = model.heads.linear(0), model.heads.linear(2)
        self._hidden = _Linear.of(
            torch.cat([one.weight for one in first]), torch.cat([one.bias for one in first])
        )
        self._last = _Linear.of(
            _block_diagonal([one.weight[0] for one in last]).T,
            torch.cat([one.bias for one in last]),
        )
        self._space = _Space()
        self._compiled = self._compile()
        self.query_fields: dict[tuple[int, ...], Tensor] = {}
        """Encoded features of queries by their rows, [1, W - ...]; kept by who encodes them."""

    def _compile(self) -> NetworkOfOne:
        """Arrange the weights for the compiled network; fields as of ``Network`` in ranker.c."""
        dim, trunk, width = self._items.shape[1], self._trunk, self._trunk.up.shape[1]
        num_experts = self._table.shape[1] - dim
        hidden, num_tasks = len(trunk.up) // max(1, num_experts), len(self._last.weight)
        ups = [panels(one.numpy()) for one in trunk.up.split(hidden)]
        downs = [panels(one.numpy()) for one in trunk.down.split(hidden, dim=1)]
        dense = self._dense
        biases = [filled_up(one.bias[:, 0]) for one in self._cross]
        return NetworkOfOne(
            dim=dim,
            num_tasks=num_tasks,
            num_rows=len(self._table),
            num_experts=num_experts,
            hidden=hidden,
            width=width,
            dense_dim=self._dense_dim,
            num_dense=0 if dense is None else dense.weight.shape[1],
            heads_hidden=len(self._hidden.weight),
            num_layers=len(self._cross),
            base=-1 if self._base is None else self._base,
            num_recency=len(self._recency),
            table=self._table,
            recency=np.ascontiguousarray(self._recency),
            nothing=self._nothing,
            keys=panels(self._keys.T),
            key_bias=filled_up(self._key_bias),
            means=self._means,
            scales=None if self._means is None else self._scales,
            dense=None if dense is None else panels(dense.weight.numpy()),
            dense_bias=None if dense is None else filled_up(dense.bias[:, 0]),
            cross=np.concatenate([panels(one.weight.numpy()) for one in self._cross]),
            cross_bias=np.concatenate(biases),
            up=np.concatenate(ups),
            up_bias=None if trunk.up_bias is None else filled_up(trunk.up_bias[:, 0]),
            down=np.concatenate(downs),
            down_bias=None if trunk.down_bias is None else filled_up(trunk.down_bias[:, 0]),
            heads=panels(self._hidden.weight.numpy()),
            heads_bias=filled_up(self._hidden.bias[:, 0]),
            last=self._last.weight,
            last_bias=np.ascontiguousarray(self._last.bias[:, 0]),
            eps=float(trunk.eps),
            most=float(MAX_STANDARDISED),
        )

    def _fold_attention(self, attention: TargetAttention) -> None:
        key, query = attention.key, attention.query
        scale = key.out_features**-0.5
        own = torch.cat([query.weight, query.bias[:, None]], dim=1).detach().double()  # [A, D + 1]
        self._keys: Floats = (scale * key.weight.double().T @ own).detach().float().numpy()
        self._key_bias: Floats = (scale * key.bias.double() @ own).detach().float().numpy()
        self._nothing: Floats = attention.nothing.detach()[None].numpy()
        # The latest event last.
        self._recency: Floats = attention.recency.weight.detach().flip(0).numpy()

    def _fold_dense(self, model: Layers) -> None:
        """Arrange what reads the features: the field's rows, then the correction's."""
        self._base: int | None = None
        self._means: Floats | None = None
        parts = [] if model.candidate_dense is None else [model.candidate_dense]
        weights: list[Tensor] = [one.weight for one in parts]
        biases: list[Tensor] = [one.bias for one in parts]
        self._dense_dim = len(weights[0]) if weights else 0
        if (correction := model.correction) is not None:
            self._base, self._means = correction.column, correction.means.numpy()[:, None].copy()
            self._scales: Floats = correction.scales.numpy()[:, None].copy()
            weights, biases = [*weights, correction.weight], [*biases, correction.bias]
        self._dense = _Linear.of(torch.cat(weights), torch.cat(biases)) if weights else None

    def read(self, reader: QueryReader) -> FoldedReader:
        history = reader.history
        return self._read(
            history.values[0].numpy(), history.mask[0, 0].numpy(), reader.fields.numpy()
        )

    def read_one(self, history: Rows, fields: Tensor) -> FoldedReader:
        """Fold one query, with the same bits as ``read``.

        Args:
            history: Item rows, oldest first.
            fields: Of its features, [1, W - ...].
        """
        if (found := self._compiled.read_events(history[-len(self._recency) :])) is not None:
            keys, values = found
            dim = values.shape[1]
            own = torch.from_numpy(keys[:, :dim])
            return FoldedReader(
                own, keys[:, dim : dim + 1], torch.from_numpy(values).T, fields.numpy().T
            )
        latest = self._known(history[-len(self._recency) :])
        values = np.empty((len(latest) + 1, self._items.shape[1]), np.float32)
        values[:1] = self._nothing
        np.add(
            self._items.take(latest, 0),
            self._recency[len(self._recency) - len(latest) :],
            out=values[1:],
        )
        return self._read(values, None, fields.numpy())

    def _read(self, values: Floats, mask: Floats | None, fields: Floats) -> FoldedReader:
        keys = torch.from_numpy(values).mm(torch.from_numpy(self._keys)).numpy()
        keys += self._key_bias
        offsets = keys[:, -1:] if mask is None else keys[:, -1:] + mask[:, None]
        return FoldedReader(
            torch.from_numpy(keys[:, :-1]), offsets, torch.from_numpy(values).T, fields.T
        )

    def logits(
        self, reader: FoldedReader, rows: Rows, dense: Floats | None, columns: int
    ) -> Floats:
        """Predict a tile of candidates, [T, columns], of which the first C are theirs.

        Args:
            rows: Item rows, [C].
            dense: Their features, [C, G].
            columns: Of the tile, at least C.
        """
        if (found := self._compiled.logits(reader, rows, dense, columns)) is not None:
            return found.T
        looked_up = self._table.take(self._known(rows), 0)  # [C, D + E]
        count, dim, width = len(rows), self._items.shape[1], self._trunk.up.shape[1]
        together, together_t = self._space.take("together", width, columns)
        if count < columns:
            together[:dim, count:] = 0
        together[:dim, :count] = looked_up[:, :dim].T
        self._attend(reader, together, together_t, dim)
        end = width - self._dense_dim
        together[2 * dim : end] = reader.fields
        corrected = self._read_dense(dense, together[end:])
        crossed, crossed_t = together, together_t
        for layer, (weight, bias) in enumerate(self._cross):
            product, product_t = self._space.take(f"crossed {layer}", width, columns)
            torch.mm(weight, crossed_t, out=product_t)
            product += bias
            product *= together
            product += crossed
            crossed, crossed_t = product, product_t
        mixed, mixed_t = self._mixed(crossed, crossed_t, looked_up[:, dim:])
        mixed += crossed
        hidden, hidden_t = self._space.take("heads", len(self._hidden.weight), columns)
        torch.mm(self._hidden.weight, mixed_t, out=hidden_t)
        hidden += self._hidden.bias
        hidden_t.relu_()
        logits: Floats = torch.mm(self._last.weight, hidden_t).numpy()
        logits += self._last.bias
        if corrected is not None:
            logits += corrected
        return logits

    def _known(self, rows: Rows) -> Rows:
        size = len(self._table)
        if len(rows) and rows.min() >= 0 and rows.max() < size:
            return rows
        return np.where((rows >= 0) & (rows < size), rows, 0)

    def _attend(self, reader: FoldedReader, together: Floats, together_t: Tensor, dim: int) -> None:
        """Read the history for each candidate, from [D, C] to the [D, C] after them."""
        found = torch.mm(reader.keys, together_t[:dim]).numpy()  # [P, C]
        found += reader.offsets
        found -= found.max(0)
        np.exp(found, out=found)
        read = together[dim : 2 * dim]
        torch.mm(reader.values, torch.from_numpy(found), out=together_t[dim : 2 * dim])
        read /= found.sum(0)

    def _read_dense(self, dense: Floats | None, field: Floats) -> Floats | None:
        """Write the field of features [C, G], [D, columns]; return the corrected base, [T, C]."""
        if self._dense is None or dense is None:
            return None
        count, columns = len(dense), field.shape[1]
        own, own_t = self._space.take("dense", dense.shape[1], columns)
        if count < columns:
            own[:, count:] = 0
        if self._means is None:
            own[:, :count] = dense.T
        else:
            np.subtract(dense.T, self._means, out=own[:, :count])
            own *= self._scales
            own_t.clamp_(-MAX_STANDARDISED, MAX_STANDARDISED)
        product = torch.mm(self._dense.weight, own_t).numpy()
        product += self._dense.bias
        field[:] = product[: self._dense_dim]
        if self._base is None:
            return None
        corrected: Floats = product[self._dense_dim :]
        corrected[:, :count] += dense[:, self._base]
        return corrected

    def _mixed(self, crossed: Floats, crossed_t: Tensor, routed: Floats) -> tuple[Floats, Tensor]:
        """Run the trunk without its residual, [W, columns] -> [W, columns].

        Args:
            routed: Weights of the experts, [C, E].
        """
        trunk, (width, columns) = self._trunk, crossed.shape
        mixed, mixed_t = self._space.take("mixed", width, columns)
        np.multiply(crossed, crossed, out=mixed)
        scale = mixed.sum(0)  # [columns]
        scale /= np.float32(width)
        scale += np.float32(trunk.eps)
        np.sqrt(scale, out=scale)
        np.reciprocal(scale, out=scale)
        hidden, hidden_t = self._space.take("experts", len(trunk.up), columns)
        torch.mm(trunk.up, crossed_t, out=hidden_t)
        if trunk.up_bias is None:
            hidden_t.relu_()
            weights, _ = self._space.take("routed", routed.shape[1], columns)
            weights[:, : len(routed)] = routed.T
            weights *= scale
            hidden.reshape(len(weights), -1, columns)[:] *= weights[:, None]
        else:
            hidden *= scale
            hidden += trunk.up_bias
            hidden_t.relu_()
        torch.mm(trunk.down, hidden_t, out=mixed_t)
        if trunk.down_bias is not None:
            mixed += trunk.down_bias
        return mixed, mixed_t


def _block_diagonal(columns: list[Tensor]) -> Tensor:
    """Arrange columns [F] as the blocks of a block-diagonal matrix, [T F, T]."""
    rows = [torch.zeros(len(one), len(columns)) for one in columns]
    for place, column in enumerate(columns):
        rows[place][:, place] = column
    return torch.cat(rows)


def _folded_trunk(trunk: Trunk) -> _Trunk:
    norm = trunk.norm
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    if isinstance(trunk.body, SparseMoe):
        body = trunk.body.experts
        num_experts, hidden_dim, width = body.up.shape
        up = (body.up * norm.weight).reshape(num_experts * hidden_dim, width).detach()
        down = body.down.permute(1, 0, 2).reshape(width, num_experts * hidden_dim)
        return _Trunk(up, None, down.detach().contiguous(), None, eps)
    first, _, last = cast("tuple[WideLinear, nn.ReLU, WideLinear]", trunk.body)
    up, up_bias = _Linear.of(first.weight * norm.weight, first.bias)
    down, down_bias = _Linear.of(last.weight, last.bias)
    return _Trunk(up, up_bias, down, down_bias, eps)


def folded(model: Layers, items: Tensor, routing: Routing | None) -> FoldedRanker | None:
    """Fold a ranker's weights; None on other devices or for other architectures.

    Args:
        items: Fields of all items, [N, D].
    """
    body = model.trunk.body
    if isinstance(body, SparseMoe):
        few = body.config.num_experts <= MOST_EXPERTS * body.config.top_k
        fits = routing is not None and few
    else:
        fits = isinstance(body, nn.Sequential)
    weights = [weight for part in model.folded() for weight in part.parameters()]
    plain = all(one.device.type == "cpu" and one.dtype == torch.float32 for one in weights)
    if not (fits and plain):
        return None
    with torch.no_grad():
        return FoldedRanker(model, items, routing)
