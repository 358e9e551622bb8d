"""Low-rank adapters: small corrections of a frozen model for a domain.

LoRA (arXiv:2106.09685). A targeted layer y = W x + c becomes

    y = W x + c + (alpha / rank) B A x        A [r, I], B [O, r], B starts at zero

An adapter is attached by forward hooks: the base keeps its names, state dict and digest, and
computes the same bits without an adapter. A row e_i of a table becomes

    e_i + (alpha / rank) b_i A                A [r, D], b_i [r] of its own, all b start at zero

so a domain's items move within r shared directions, with r parameters an item instead of D. Rows of
other domains are not corrected and have no parameters.

``LoraAdapter`` holds the matrices of one domain, to train and save; ``LoraBank`` keeps the
merged weights of several domains (``models/adapted.py``).

Axes: X rows of a layer's input, I and O a layer's inputs and outputs, r rank,
K corrected rows, N rows of a table, D width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.bounds import check_bounds
from recsys.layers.embedding.collection import EmbeddingBags


class LoraTable(NamedTuple):
    """One table of a model."""

    layer: EmbeddingBags
    parameter: str
    """Its weight in the model, ``<layer>.collection.embedding_bags.<table>.weight``."""
    features: tuple[str, ...]

    @property
    def weight(self) -> nn.Parameter:
        return self.layer.weight(self.parameter.split(".")[-2])


def find_tables(base: nn.Module) -> dict[str, LoraTable]:
    """Find the embedding tables of a model, by their names."""
    return {
        table.name: LoraTable(
            layer, f"{path}.collection.embedding_bags.{table.name}.weight", tuple(table.features)
        )
        for path, layer in base.named_modules()
        if isinstance(layer, EmbeddingBags)
        for table in layer.tables.values()
    }


def targeted_tables(base: nn.Module, names: tuple[str, ...]) -> dict[str, LoraTable]:
    """Select tables by name."""
    there = find_tables(base)
    for name in names:
        if name not in there:
            raise ValueError(
                f"{type(base).__name__} has no embedding table {name!r}; it has "
                f"{', '.join(sorted(there)) or 'none'}"
            )
        if there[name].layer.tables[name].pooling != "sum":
            raise ValueError(f"table {name!r} is pooled by a mean; only summed rows are corrected")
    return {name: there[name] for name in names}


def checked_rows(name: str, table: LoraTable, rows: Mapping[str, Tensor]) -> Tensor:
    """Sort the rows of a table that an adapter corrects, [K]."""
    own = torch.unique(rows[name]) if name in rows else torch.empty(0, dtype=torch.int64)
    num_rows = len(table.weight)
    if len(own) == 0 or int(own[0]) < 1 or int(own[-1]) >= num_rows:
        raise ValueError(
            f"an adapter of table {name!r} needs rows of the domain in [1, {num_rows}), got "
            f"{len(own)}" + (f" in [{int(own[0])}, {int(own[-1])}]" if len(own) else "")
        )
    return own


class LowRankRows(nn.Module):
    """The correction of some rows of one table."""

    def __init__(self, table: LoraTable, rows: Tensor, rank: int) -> None:
        """Create a correction without effect.

        Args:
            rows: Ascending, none 0, [K].
        """
        super().__init__()
        num_rows, dim = table.weight.shape
        device = table.weight.device
        self.a = nn.Parameter(torch.empty(rank, dim, device=device))
        self.b = nn.Parameter(torch.zeros(len(rows), rank, device=device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        place = torch.full((num_rows,), len(rows))
        place[rows.cpu()] = torch.arange(len(rows))
        self.rows: Tensor
        self.place: Tensor
        # Derived from the domain, so not part of checkpoints.
        self.register_buffer("rows", rows.to(device), persistent=False)
        self.register_buffer("place", place.to(device), persistent=False)

    def pooled(self, values: Jagged) -> Tensor:
        """Correct a feature's summed rows, [B, D], before the scale."""
        summed = functional.embedding_bag(
            self.place[values.values],
            functional.pad(self.b, (0, 0, 0, 1)),  # zeros below, for rows that are not corrected
            values.offsets,
            mode="sum",
            per_sample_weights=values.weights,
            include_last_offset=True,
        )
        corrected: Tensor = summed @ self.a
        return corrected

    def whole_b(self) -> Tensor:
        """Scatter b to the whole table, 0 for other rows, [N, r]."""
        whole = self.b.new_zeros(len(self.place), self.b.shape[1])
        return whole.index_copy(0, self.rows, self.b.detach())


Hook = Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]
Pooled = dict[str, Tensor]
TableHook = Callable[[nn.Module, tuple[JaggedBatch], Pooled], Pooled]


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Rank, scale and targets of an adapter."""

    targets: tuple[str, ...]
    """Patterns of the names of nn.Linear layers, such as ``encoder.*``; * matches dots too."""
    tables: tuple[str, ...] = ()
    """Embedding tables whose rows of the domain are corrected, such as ``item``."""
    rank: int = 8
    alpha: float = 16.0
    """The correction is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Dropout of the adapter's input, in training."""
    max_share: float = 0.05
    """Maximum parameters, as a share of the base's."""

    def __post_init__(self) -> None:
        check_bounds(self, rank=">= 1", alpha="> 0", dropout="[0, 1)", max_share="(0, 1]")
        if not self.targets:
            raise ValueError(f"targets must be a tuple of name patterns, got {self.targets!r}")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def digest_of_weights(model: nn.Module) -> str:
    """Hash names, types, shapes and bytes of a model's state dict (sha256, hex)."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous()
        hasher.update(plain.reshape(-1).view(torch.uint8).numpy())
    return hasher.hexdigest()


def targeted_layers(base: nn.Module, patterns: tuple[str, ...]) -> dict[str, nn.Linear]:
    """Find the linear layers that patterns name, in the model's order."""
    linear = {name: one for name, one in base.named_modules() if isinstance(one, nn.Linear)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise ValueError(
                f"target {pattern!r} names no linear layer of {type(base).__name__}; it has "
                f"{', '.join(linear) or 'none'}"
            )
    return {
        name: layer
        for name, layer in linear.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def freeze(base: nn.Module) -> None:
    """Disable gradients of a model's weights, and row updates of its tables."""
    base.requires_grad_(False)
    for module in base.modules():
        if isinstance(module, EmbeddingBags) and not module.is_sharded:
            module.update_rows(None)


class LowRank(nn.Module):
    """The correction of one layer."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        device = layer.weight.device
        self.a = nn.Parameter(torch.empty(rank, layer.in_features, device=device))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, inputs: Tensor) -> Tensor:
        """Correct inputs [..., I] -> [..., O], before the scale."""
        return functional.linear(functional.linear(inputs, self.a), self.b)


class LoraAdapter(nn.Module):
    """Low-rank corrections of one model's layers.

    The base is no submodule: parameters, state dict and checkpoints are the adapter's, so the
    training loop handles it like any model. ``train()`` and ``eval()`` apply to the base too.
    """

    def __init__(
        self,
        base: nn.Module,
        config: LoraConfig,
        *,
        base_digest: str | None = None,
        rows: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Freeze a base and create corrections without effect."""
        super().__init__()
        layers = targeted_layers(base, config.targets)
        tables = targeted_tables(base, config.tables)
        own = {name: checked_rows(name, table, rows or {}) for name, table in tables.items()}
        _check_size(base, layers, {name: (tables[name], own[name]) for name in tables}, config)
        self.config = config
        self.base_digest = base_digest or digest_of_weights(base)
        self._outside = (base, layers, tables)
        # A dot cannot be part of a submodule's name.
        self.corrections = nn.ModuleDict(
            {name.replace(".", "/"): LowRank(layer, config.rank) for name, layer in layers.items()}
        )
        self.table_corrections = nn.ModuleDict(
            {name: LowRankRows(table, own[name], config.rank) for name, table in tables.items()}
        )
        self._hooks: list[RemovableHandle] = []
        freeze(base)

    @property
    def base(self) -> nn.Module:
        return self._outside[0]

    @property
    def layers(self) -> dict[str, nn.Linear]:
        """The base's layers that are corrected, by name."""
        return self._outside[1]

    @property
    def tables(self) -> dict[str, LoraTable]:
        """The base's tables of which rows are corrected, by name."""
        return self._outside[2]

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def share(self) -> float:
        """Parameters as a share of the base's."""
        return self.num_parameters / sum(one.numel() for one in self.base.parameters())

    def correction(self, name: str) -> LowRank:
        """Return the matrices of a layer."""
        found = self.corrections[name.replace(".", "/")]
        assert isinstance(found, LowRank)
        return found

    def table_correction(self, name: str) -> LowRankRows:
        """Return the matrices of a table."""
        found = self.table_corrections[name]
        assert isinstance(found, LowRankRows)
        return found

    def attach(self) -> LoraAdapter:
        """Correct every forward of the base from now on."""
        if not self._hooks:
            for name, layer in self.layers.items():
                self._hooks.append(layer.register_forward_hook(self._hook(name)))
            for name, table in self.tables.items():
                self._hooks.append(table.layer.register_forward_hook(self.table_hook(name)))
            self._forget()
        return self

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._forget()

    def train(self, mode: bool = True) -> LoraAdapter:
        """Switch the mode of adapter and base."""
        super().train(mode)
        self.base.train(mode)
        return self

    def _hook(self, name: str) -> Hook:
        one, config = self.correction(name), self.config

        def correct(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            read = functional.dropout(inputs[0], config.dropout, self.training)
            corrected: Tensor = output + config.scale * one(read)
            return corrected

        return correct

    def table_hook(self, name: str) -> TableHook:
        """Make a forward hook for the embedding layer that holds a table."""
        one, features = self.table_correction(name), self.tables[name].features

        def correct(_: nn.Module, inputs: tuple[JaggedBatch], pooled: Pooled) -> Pooled:
            scale = self.config.scale
            return pooled | {
                feature: pooled[feature] + scale * one.pooled(inputs[0][feature])
                for feature in features
            }

        return correct

    def _forget(self) -> None:
        # Models drop their cached encodings when their mode is set.
        self.base.train(self.base.training)


def _check_size(
    base: nn.Module,
    layers: dict[str, nn.Linear],
    tables: dict[str, tuple[LoraTable, Tensor]],
    config: LoraConfig,
) -> None:
    for name, layer in layers.items():
        if config.rank > min(layer.in_features, layer.out_features):
            raise ValueError(
                f"rank {config.rank} is larger than layer {name} ({layer.out_features} x "
                f"{layer.in_features}) has; it must be <= "
                f"{min(layer.in_features, layer.out_features)}, or leave the layer out of targets"
            )
    sizes = [one.in_features + one.out_features for one in layers.values()]
    sizes += [len(rows) + table.weight.shape[1] for table, rows in tables.values()]
    wanted = config.rank * sum(sizes)
    there = sum(parameter.numel() for parameter in base.parameters())
    if wanted > config.max_share * there:
        fitting = int(config.rank * config.max_share * there / wanted)
        raise ValueError(
            f"an adapter of rank {config.rank} has {wanted:,} parameters, {wanted / there:.1%} of "
            f"the base's {there:,}; at most {config.max_share:.1%} are allowed (max_share): take "
            f"rank <= {fitting} or fewer targets"
        )
