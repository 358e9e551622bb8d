"""Embedding tables split by rows over ranks.

Of n ranks, rank k holds the rows r with r % n == k, each at place r // n. A lookup sends the number
of a row to the rank that holds it and receives the row; the backward sends its gradient there, and
that rank moves the row as one process would (``layers/embedding``). So every rule and the clipping
of rows work, on every device. Weights and optimizer state are gathered as one tensor a table: a
checkpoint knows nothing of ranks.

Axes: M values of all features, R rows requested of this rank, F features, B examples, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.embedding.fbgemm_updates import row_updates_for
from recsys.layers.embedding.row_updates import RowUpdateConfig, Rule
from recsys.layers.embedding.tables import (
    PATH,
    PlainCollection,
    State,
    TableConfig,
    filled_later,
    joined,
)
from recsys.training.optim import joined_name
from recsys.training.passes import AdamWConfig, ShardingConfig

CHUNK_BYTES = 1 << 26
"""Sent at a time, so that a table needs no second copy on its way."""
JOINT = "joint"
"""Name of the one table that holds a rank's rows of all tables of a layer."""


def own_rows(whole: Tensor, rank: int) -> Tensor:
    """View the rows of a table, [N, D] or [N], that a rank holds."""
    return whole[rank :: dist.get_world_size()]


def gathered_rows(mine: Tensor, num_rows: int) -> Tensor | None:
    """Gather a table on the first rank's host, [N, D] or [N], float32; None on the others."""
    if dist.get_rank():
        for chunk in _chunks(mine):
            dist.send(chunk.detach().float().cpu().contiguous(), dst=0)
        return None
    whole = torch.empty(num_rows, *mine.shape[1:])
    own_rows(whole, 0).copy_(mine.detach())
    for rank in range(1, dist.get_world_size()):
        for chunk in _chunks(own_rows(whole, rank)):
            received = torch.empty(chunk.shape)
            dist.recv(received, src=rank)
            chunk.copy_(received)
    return whole


def broadcast_whole(value: Tensor) -> None:
    """Send the first rank's tensor to every rank's host, part by part."""
    for part in _chunks(value.detach().view(-1)):
        dist.broadcast(part, src=0)


def _chunks(part: Tensor) -> list[Tensor]:
    row_bytes = max(1, part[:1].numel() * part.element_size())
    return list(torch.split(part, max(1, CHUNK_BYTES // row_bytes))) if len(part) else []


def choose_rule(layer: EmbeddingBags, config: AdamWConfig, sharding: ShardingConfig) -> Rule | None:
    """Choose by which rule a layer's rows move where it is sharded; None leaves it replicated."""
    weights = [layer.weight(name) for name in layer.tables]
    fits = len({weight.shape[1] for weight in weights}) == 1
    fits = fits and all(weight.requires_grad for weight in weights)
    is_small = sum(weight.numel() for weight in weights) < sharding.shard_from
    if config.tables == "dense" or is_small or not fits:
        return None
    if config.tables != "auto":
        return config.tables
    # As one process chooses: on a CPU all rows move at every step.
    return "adam" if weights[0].is_cuda or torch.cuda.is_available() else None


class Route(NamedTuple):
    """Ranks and places that the values of a lookup go to."""

    order: Tensor
    """[M] places of the values, by the rank that holds their rows."""
    sent: list[int]
    """Values that go to each rank."""
    received: list[int]
    """Values that come from each rank."""
    rows: Tensor
    """[R] rows of the joint table that all ranks ask this one for."""


def exchanged(
    values: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None = None
) -> Tensor:
    """Send parts of a tensor to the ranks, and join the parts that come from them."""
    found = values.new_empty((sum(received), *values.shape[1:]))
    dist.all_to_all_single(found, values.contiguous(), received, sent, group)
    return found


class _Exchange(torch.autograd.Function):
    """Send the requested rows, [R, D] -> [M, D]; the backward sends their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: Route) -> Tensor:
        ctx.route = route
        return exchanged(rows, route.received, route.sent)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return exchanged(gradients[0], ctx.route.sent, ctx.route.received), None


class _Pool(torch.autograd.Function):
    """Sum rows [M, D] in the order of their owners by bag, [F * B, D].

    The gradient of every value is a copy of its bag's, so nothing is added up here.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, order: Tensor, offsets: Tensor, weights: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(order, offsets, weights)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return functional.embedding_bag(
            place, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        order, offsets, weights = ctx.saved_tensors
        bags = torch.arange(len(offsets) - 1, device=order.device)
        of_value = torch.repeat_interleave(bags, offsets.diff(), output_size=len(order))
        # Each rank's loss is a mean over its part, and the step's loss is the mean over ranks.
        scaled = gradients[0] / dist.get_world_size()
        found = scaled.index_select(0, of_value.index_select(0, order))
        if weights is not None:
            found = found * weights.index_select(0, order)[:, None]
        return found, None, None, None


class ShardedRowUpdates:
    """Looks rows up on the ranks that hold them, and moves those of this rank."""

    refuses_ids = False

    def __init__(
        self,
        layer: EmbeddingBags,
        config: RowUpdateConfig,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> None:
        """Take this rank's rows of a layer to a device; the layer keeps views of them.

        Args:
            group: Ranks that ask each other for rows.
        """
        self._group = group
        self._ahead: tuple[list[Tensor], Route | None] = [], None
        tables, rank, self._size = layer.tables, dist.get_rank(), dist.get_world_size()
        counts = [-(-one.num_rows // self._size) for one in tables.values()]
        self._first = dict(zip(tables, accumulate([0, *counts[:-1]]), strict=True))
        self._features = [(one, table.name) for table in tables.values() for one in table.features]
        width = next(iter(tables.values())).embedding_dim
        joint = TableConfig(
            name=JOINT, num_rows=sum(counts), embedding_dim=width, features=(JOINT,)
        )
        with filled_later(), device:
            rows = EmbeddingBags([joint], layer.wanted).to(device)
        data = rows.weight(JOINT).data.zero_()
        parts = {name: own_rows(layer.weight(name).data, rank) for name in tables}
        for name, part in parts.items():
            data[self._first[name] :][: len(part)].copy_(part)
        self._joint, self._updates = rows, row_updates_for(rows, config)
        self.weights: Mapping[str, nn.Parameter] = {name: layer.weight(name) for name in tables}
        for name, part in parts.items():
            self.weights[name].data = self.own(name, rows.weight(JOINT).data)[: len(part)]

    def own(self, table: str, joint: Tensor) -> Tensor:
        """View a table's rows in what this rank holds of all tables, [its rows, D] or [its rows].

        A last row may count for nothing.
        """
        return joint[self._first[table] :][: len(self.weights[table])]

    def slots(self) -> dict[str, Tensor]:
        """Return this rank's part of the rule's state, ``<slot>/<parameter>`` to a view."""
        return {
            f"{slot}/{PATH.format(name)}": self.own(name, by_table[JOINT])
            for slot, by_table in self._updates.state().items()
            for name in self.weights
        }

    def begin(self, learning_rate: float) -> None:
        self._updates.begin(learning_rate)

    def may_move(self, loss: Tensor) -> bool:
        return self._updates.may_move(loss)

    def ask(self, values: Mapping[str, Jagged]) -> Route:
        """Ask the ranks ahead of time for the rows of the values that are looked up next."""
        route = self.route(values)
        self._ahead = [values[one].values for one, _ in self._features], route
        return route

    def route(self, values: Mapping[str, Jagged]) -> Route:
        """Ask the ranks for the rows of the values, unless `ask` was called with these."""
        (known, ahead), own = self._ahead, [values[one].values for one, _ in self._features]
        if ahead is not None and all(one is two for one, two in zip(known, own, strict=True)):
            self._ahead = [], None
            return ahead
        owner = torch.cat(own) % self._size
        rows = torch.cat(
            [
                torch.div(one, self._size, rounding_mode="floor") + self._first[table]
                for one, (_, table) in zip(own, self._features, strict=True)
            ]
        )
        order = torch.argsort(owner.to(torch.int16), stable=True)
        sent = (owner[:, None] == torch.arange(self._size, device=owner.device)).sum(0)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        to_ranks, from_ranks = torch.stack([sent, received]).tolist()
        wanted = exchanged(rows.index_select(0, order), to_ranks, from_ranks, self._group)
        return Route(order, to_ranks, from_ranks, wanted)

    def _pooled(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        """Sum the rows of every feature, [F, B, D]."""
        route = self.route(values)
        rows = self._updates.pool_joined({JOINT: Jagged.one_each(route.rows)}, None)
        exchange: Any = _Exchange.apply
        pool: Any = _Pool.apply
        _, offsets = joined(values, [feature for feature, _ in self._features])
        found: Tensor = pool(exchange(rows, route), route.order, offsets, weights)
        return found.view(len(self._features), -1, found.shape[1])

    def pool(self, values: Mapping[str, Jagged], weights: Tensor | None) -> dict[str, Tensor]:
        pooled = self._pooled(values, weights).unbind(0)
        return {name: one for (name, _), one in zip(self._features, pooled, strict=True)}

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        return torch.cat(self._pooled(values, weights).unbind(0), dim=1)

    def state(self) -> State:
        return {}  # ShardedTables gathers it

    def num_steps(self) -> int:
        return self._updates.num_steps()

    def set_num_steps(self, num_steps: int) -> None:
        self._updates.set_num_steps(num_steps)


class ShardedTables:
    """The sharded layers of a model."""

    def __init__(self, layers: Mapping[str, tuple[EmbeddingBags, ShardedRowUpdates]]) -> None:
        self._layers = dict(layers)
        self._num_rows = {
            joined_name(place, PATH.format(table.name)): table.num_rows
            for place, (layer, _) in layers.items()
            for table in layer.tables.values()
        }
        self.parameters = {id(one) for layer, _ in layers.values() for one in layer.parameters()}
        """Identities of tensors that are on one rank alone."""

    def state_of(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather whole weights at the first rank, on the host; elsewhere nothing."""
        found = {}
        for name, value in model.state_dict().items():
            num_rows = self._num_rows.get(name)
            whole = value if num_rows is None else gathered_rows(value, num_rows)
            if whole is not None and dist.get_rank() == 0:
                found[name] = whole.detach()
        return found

    def load_state(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Load whole weights; of a sharded table, this rank's part."""
        own = model.state_dict()
        if own.keys() != state.keys():
            raise ValueError(
                f"the weights lack {sorted(own.keys() - state.keys())} and have "
                f"{sorted(state.keys() - own.keys())} besides"
            )
        rank = dist.get_rank()
        with torch.no_grad():
            for name, value in own.items():
                whole = state[name]
                value.copy_(own_rows(whole, rank) if name in self._num_rows else whole)
        model.train(model.training)

    def moments(self) -> dict[str, Tensor]:
        """Gather the optimizer's state at the first rank, as ``optimizer_tensors`` names it."""
        found = {}
        for name, (mine, num_rows) in self._slots().items():
            whole = gathered_rows(mine, num_rows)
            if whole is not None:
                found[name] = whole
        return found

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Take this rank's part of the state out of a checkpoint's tensors."""
        for name, (mine, num_rows) in self._slots().items():
            whole, shape = tensors.pop(name, None), (num_rows, *mine.shape[1:])
            if whole is None or tuple(whole.shape) != shape:
                raise ValueError(
                    f"the optimizer's state needs {name!r} of shape {shape}, got "
                    f"{'nothing' if whole is None else tuple(whole.shape)}; was it saved by "
                    "another rule?"
                )
            with torch.no_grad():
                mine.copy_(own_rows(whole, dist.get_rank()))

    def _slots(self) -> dict[str, tuple[Tensor, int]]:
        """Return each slot's part by its name in a checkpoint, and its table's number of rows."""
        found = {}
        for place, (_, updates) in self._layers.items():
            for key, mine in updates.slots().items():
                slot, parameter = key.split("/", 1)
                name = joined_name(place, parameter)
                found[f"{slot}/{name}"] = mine, self._num_rows[name]
        return found

    def make_whole(self, model: nn.Module, best: Mapping[str, Tensor] | None) -> None:
        """Put plain tables in place of sharded ones, on every rank's host.

        Args:
            best: Weights that it takes, at the first rank; None keeps its own.
        """
        state = self.state_of(model) if best is None else best
        for layer, _ in self._layers.values():
            plain = PlainCollection(list(layer.tables.values()))
            layer.put(plain.to_empty(device="cpu"))
        model.to("cpu")
        if dist.get_rank() == 0:
            model.load_state_dict(dict(state))
        for value in model.state_dict().values():
            broadcast_whole(value)
        model.train(model.training)


def shard_tables(
    model: nn.Module,
    config: AdamWConfig,
    sharding: ShardingConfig,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> ShardedTables | None:
    """Spread the large tables of a model over the ranks; the others are on each.

    Args:
        device: Where this rank's rows go; the whole tables may be on the host.
        group: Ranks that ask each other for rows.

    Returns:
        None where no table is large.
    """
    found: dict[str, tuple[EmbeddingBags, ShardedRowUpdates]] = {}
    for place, module in model.named_modules():
        if not isinstance(module, EmbeddingBags):
            continue
        module.lies_on_every_rank = True
        rule = choose_rule(module, config, sharding)
        if rule is not None:
            rows = RowUpdateConfig(rule=rule, max_row_norm=config.max_row_norm)
            updates = ShardedRowUpdates(module, rows, device, group)
            module.is_sharded, module.updates = True, updates
            found[place] = module, updates
    return ShardedTables(found) if found else None
