"""Embedding rows that move inside the backward: only rows of the batch, no gradient of a table.

A dense optimizer reads and writes every row and its state at every step, which for 10M rows takes
longer than the rest of a step. Here the optimizer runs on the rows that occur. Adam is then the
lazy kind: the moments of a row decay when it occurs, not at every step.

Two of the three kinds are here, the third is in ``layers/fbgemm_updates.py``. They agree to
1e-6 of the weights' size in float32, and keep their state by table under torch's slot names, so a
run may continue with another kind.

Axes: B examples, M values of all features, U different rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.data.bounds import check_choices
from recsys.kernels.embedding_bag.layout import (
    Optimizer,
    OptimizerConfig,
    TableLayout,
    bias_corrections,
)
from recsys.kernels.embedding_bag.op import FusedEmbeddingBags as KernelBags
from recsys.layers.embedding.tables import State, TableConfig, joined

Rule = Literal["sgd", "rowwise_adagrad", "adam", "rowwise_adam"]
SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "rowwise_adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "rowwise_adam": ("exp_avg", "exp_avg_sq"),
}


@dataclass(frozen=True, kw_only=True)
class RowUpdateConfig:
    """The rule by which rows move, and its numbers."""

    rule: Rule = "adam"
    """Row-wise rules keep one word of squares a row instead of one an element."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_row_norm: float | None = None
    """Greatest length of a row's gradient, summed over the batch; longer ones are scaled to it,
    and a row whose gradient is not finite stays as it is. None does neither."""

    def __post_init__(self) -> None:
        check_choices(self, rule=get_args(Rule))
        self.kernel_config()

    def kernel_config(self) -> OptimizerConfig:
        """Return the same to the kernels."""
        return OptimizerConfig(
            rule=Optimizer[self.rule.upper()],
            epsilon=self.eps,
            beta1=self.beta1,
            beta2=self.beta2,
            max_row_norm=self.max_row_norm,
        )


def same_places(weights: Mapping[str, nn.Parameter], views: Mapping[str, Tensor]) -> None:
    """Refuse tables that were moved away from where their updates write."""
    for name, weight in weights.items():
        if weight.data_ptr() != views[name].data_ptr():
            raise ValueError(
                f"table {name!r} was moved or replaced after its row updates were prepared; move "
                "the model to its device first, then build the optimizer"
            )


class DeviceScalars:
    """Numbers that the update reads on the device, so that the host need not wait."""

    def __init__(self, device: torch.device) -> None:
        self.learning_rate = torch.zeros(1, device=device)
        self.grad_scale: Tensor | None = None
        """[1] float32, multiplies the gradient of every row."""
        self.skip = torch.zeros(1, dtype=torch.int32, device=device)
        """Not zero where the backward must move nothing."""

    def begin(self, learning_rate: float) -> None:
        self.learning_rate.fill_(learning_rate)

    def may_move(self, loss: Tensor) -> bool:
        # Through .data: autograd saved this tensor in the forward and would refuse the change, but
        # the backward is meant to read what stands here when it runs.
        self.skip.data.copy_(~torch.isfinite(loss.detach()))
        return True


class JoinedPools:
    """All tables are read at once, features side by side."""

    def __init__(self, tables: Sequence[TableConfig]) -> None:
        self.features = [feature for table in tables for feature in table.features]
        self.feature_tables = [place for place, table in enumerate(tables) for _ in table.features]
        self.dims = [tables[place].embedding_dim for place in self.feature_tables]

    def pool(self, values: Mapping[str, Jagged], weights: Tensor | None) -> dict[str, Tensor]:
        pooled = self.pool_joined(values, weights)
        return dict(zip(self.features, torch.split(pooled, self.dims, dim=1), strict=True))

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        raise NotImplementedError


class KernelRowUpdates(DeviceScalars, JoinedPools):
    """By our Triton kernels, on CUDA. Bitwise the same in every run."""

    refuses_ids = False

    def __init__(
        self,
        tables: Sequence[TableConfig],
        weights: Mapping[str, nn.Parameter],
        config: RowUpdateConfig,
    ) -> None:
        first = weights[tables[0].name]
        super().__init__(first.device)
        JoinedPools.__init__(self, tables)
        layout = TableLayout(
            tuple(table.num_rows for table in tables),
            tuple(table.embedding_dim for table in tables),
            tuple(self.feature_tables),
        )
        # A table that is alone stays where it is: a copy would take its memory twice.
        is_alone = first.numel() == layout.num_elements
        alone = first.data.view(-1) if is_alone else None
        self.bags = KernelBags(
            layout, config.kernel_config(), dtype=first.dtype, device=first.device, weights=alone
        )
        self.bags.learning_rate = self.learning_rate
        self.config, self.tables, self.weights = config, tables, weights
        self.views = {table.name: self.bags.table(place) for place, table in enumerate(tables)}
        for name, view in self.views.items():
            if not is_alone:
                view.copy_(weights[name].data)
            weights[name].data = view

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        same_places(self.weights, self.views)
        ids, offsets = joined(values, self.features)
        pooled: Tensor = self.bags(
            ids, offsets, weights, grad_scale=self.grad_scale, skip=self.skip
        )
        return pooled

    def state(self) -> State:
        layout, slots = self.bags.layout, SLOTS[self.config.rule]
        found: State = {slot: {} for slot in slots}
        for place, table in enumerate(self.tables):
            key = layout.table_keys[place]
            rows = self.bags.second[key : key + table.num_rows]
            if self.config.rule == "rowwise_adagrad":
                found["sum"][table.name] = rows
            elif slots:
                found["exp_avg"][table.name] = layout.table(self.bags.first, place)
                whole = self.config.rule == "adam"
                second = layout.table(self.bags.second, place) if whole else rows
                found["exp_avg_sq"][table.name] = second
        return found

    def num_steps(self) -> int:
        return int(self.bags.step)

    def set_num_steps(self, num_steps: int) -> None:
        self.bags.step.fill_(num_steps)


class _TableLookup(torch.autograd.Function):
    """Pools of all features of one table; the backward moves its rows.

    A row's gradient is a pool too: the sum of the gradients of the bags that it occurs in. So the
    ids are sorted by row, and the same function adds up what a sparse gradient would write out.
    ``anchor`` only makes autograd call the backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        ids: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        updates: TorchRowUpdates,
        name: str,
    ) -> Tensor:
        ctx.place = (updates, name)
        # Not the rows: an update between forward and backward is no mistake here.
        ctx.save_for_backward(ids, offsets, sample_weights)
        return summed(updates.views[name], ids, offsets, sample_weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ids, offsets, sample_weights = ctx.saved_tensors
        (updates, name), grad = ctx.place, grads[0].contiguous()
        bags = torch.arange(len(offsets) - 1, device=ids.device)
        bags = bags.repeat_interleave(offsets.diff(), output_size=len(ids))
        sample_grad = None
        if ctx.needs_input_grad[3]:
            # Before the update, which changes the rows that this reads.
            sample_grad = (updates.views[name][ids] * grad[bags]).sum(1)
        in_order, order = ids.sort(stable=True)
        rows, counts = torch.unique_consecutive(in_order, return_counts=True)
        starts = functional.pad(counts.cumsum(0), (1, 0))
        factors = None if sample_weights is None else sample_weights.detach()[order]
        updates.move(name, rows, summed(grad, bags[order], starts, factors))
        return None, None, None, sample_grad, None, None


def summed(table: Tensor, ids: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Add up the rows [B, D] of each bag, weighted where there are weights."""
    return functional.embedding_bag(
        ids, table, offsets, mode="sum", per_sample_weights=sample_weights, include_last_offset=True
    )


class TorchRowUpdates(DeviceScalars):
    """In plain torch: rows are summed and moved in the backward of each table's lookup."""

    refuses_ids = True

    def __init__(
        self,
        tables: Sequence[TableConfig],
        weights: Mapping[str, nn.Parameter],
        config: RowUpdateConfig,
    ) -> None:
        device = weights[tables[0].name].device
        super().__init__(device)
        self.tables, self.weights, self.config = tables, weights, config
        self.views = {name: weight.data for name, weight in weights.items()}
        self.steps = torch.zeros(1, dtype=torch.int64, device=device)
        self._anchor = torch.zeros(1, device=device, requires_grad=True)
        self._state: State = {}
        for slot in SLOTS[config.rule]:
            wide = slot == "exp_avg" or config.rule == "adam"
            self._state[slot] = {
                name: torch.zeros_like(weight if wide else weight[:, 0], requires_grad=False)
                for name, weight in weights.items()
            }

    def may_move(self, loss: Tensor) -> bool:
        super().may_move(loss)
        self.steps += self.skip == 0
        return True

    def pool(self, values: Mapping[str, Jagged], weights: Tensor | None) -> dict[str, Tensor]:
        same_places(self.weights, self.views)
        pooled: dict[str, Tensor] = {}
        before = 0
        for table in self.tables:
            ids, offsets = joined(values, table.features)
            own = None if weights is None else weights[before : before + len(ids)]
            before += len(ids)
            apply: Any = _TableLookup.apply
            found: Tensor = apply(self._anchor, ids, offsets, own, self, table.name)
            parts = found.view(len(table.features), -1 if len(found) else 0, table.embedding_dim)
            pooled |= dict(zip(table.features, parts.unbind(0), strict=True))
        return pooled

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        return torch.cat(list(self.pool(values, weights).values()), dim=1)

    def move(self, name: str, rows: Tensor, total: Tensor) -> None:
        """Move rows [U] of a table by their gradients [U, D]."""
        # Rows that move; None for all. A GPU is not waited for.
        moves = (self.skip == 0).expand(len(rows)) if self.skip.is_cuda else None
        if moves is None and bool(self.skip != 0):
            return
        if self.grad_scale is not None:
            total = total * self.grad_scale
        if self.config.max_row_norm is not None:
            norm = total.norm(dim=1)
            moves = norm.isfinite() if moves is None else moves & norm.isfinite()
            total = total * (self.config.max_row_norm / (norm + 1e-6)).clamp(max=1)[:, None]
        state = {slot: by_table[name] for slot, by_table in self._state.items()}
        old = {slot: one.index_select(0, rows) for slot, one in state.items()}
        change, new = self._change(old, total)
        for slot, one in state.items():
            one.index_copy_(0, rows, moved(moves, new[slot], old[slot]))
        weight = self.views[name]
        before = weight.index_select(0, rows)
        weight.index_copy_(0, rows, moved(moves, before - change, before))

    def _change(self, old: dict[str, Tensor], grad: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute what rows lose, [U, D], and their new state."""
        config, lr = self.config, self.learning_rate
        if config.rule == "sgd":
            return lr * grad, {}
        if config.rule == "rowwise_adagrad":
            total = old["sum"] + grad.square().mean(1)
            return lr * grad / (total.sqrt() + config.eps)[:, None], {"sum": total}
        correct = bias_corrections(self.steps, config.kernel_config())
        square = grad.square() if config.rule == "adam" else grad.square().mean(1)
        mean = old["exp_avg"] * config.beta1 + grad * (1 - config.beta1)
        second = old["exp_avg_sq"] * config.beta2 + square * (1 - config.beta2)
        below = (second / correct[1]).sqrt() + config.eps
        if config.rule == "rowwise_adam":
            below = below[:, None]
        return lr * (mean / correct[0]) / below, {"exp_avg": mean, "exp_avg_sq": second}

    def state(self) -> State:
        return self._state

    def num_steps(self) -> int:
        return int(self.steps)

    def set_num_steps(self, num_steps: int) -> None:
        self.steps.fill_(num_steps)


def moved(moves: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """Take the new rows, [U] or [U, D], where ``moves`` [U] says so."""
    if moves is None:
        return new
    return torch.where(moves[:, None] if new.ndim == 2 else moves, new, old)
