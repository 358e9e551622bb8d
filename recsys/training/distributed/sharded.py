"""Embedding tables spread over ranks by TorchRec's DistributedModelParallel.

A table's rows (or columns, or the whole of it) are on one rank each, as TorchRec's planner decides
from the memory of the devices; lookups and gradients go through all-to-all, and the backward moves
the rows by FBGEMM's fused optimizers. Weights and optimizer state are gathered as one tensor a
table, so that a checkpoint knows nothing of ranks.

The one place besides ``layers/embedding`` that knows TorchRec.

Axes: B examples, M values of all features, D width.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recsys.data.batch import Jagged
from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.embedding.row_updates import SLOTS, RowUpdateConfig, Rule
from recsys.layers.embedding.tables import PlainCollection, State, torchrec_collection
from recsys.training.optim import joined_name
from recsys.training.passes import AdamWConfig, ShardingConfig

CHUNK_BYTES = 1 << 26
"""Sent at a time, so that a table needs no second copy on its way."""
Place = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a table and the rank that holds it; every rank knows all of them."""

    offsets: Place
    sizes: Place
    owner: int

    def of(self, whole: Tensor) -> Tensor:
        """Cut the part out of a whole tensor; of one number a row, by rows alone."""
        ends = zip(self.offsets, self.sizes, strict=True)
        return whole[tuple(slice(one, one + size) for one, size in ends)[: whole.dim()]]


def list_shards(sharded: Any) -> list[Shard]:
    """List all parts of a ShardedTensor, in the order in which they are gathered."""
    return [
        Shard(
            offsets=tuple(meta.shard_offsets),
            sizes=tuple(meta.shard_sizes),
            owner=meta.placement.rank(),
        )
        for meta in sharded.metadata().shards_metadata
    ]


def local_parts(sharded: Any) -> dict[Place, Tensor]:
    """Return this rank's parts of a ShardedTensor by the offsets of its first axes."""
    return {tuple(one.metadata.shard_offsets): one.tensor for one in sharded.local_shards()}


def gathered_parts(
    shards: Sequence[Shard], mine: Mapping[Place, Tensor], shape: Sequence[int]
) -> Tensor | None:
    """Gather a table on the first rank's host, [N, D] or [N], float32; None on the others."""
    rank = dist.get_rank()
    whole = torch.empty(tuple(shape)) if rank == 0 else None
    for shard in shards:
        if shard.owner == rank == 0:
            assert whole is not None
            shard.of(whole).copy_(_part(mine, shard, whole.dim()))
        elif shard.owner == rank:
            for chunk in _chunks(_part(mine, shard, len(shape))):
                dist.send(chunk.detach().float().cpu().contiguous(), dst=0)
        elif whole is not None:
            for chunk in _chunks(shard.of(whole)):
                received = torch.empty(chunk.shape)
                dist.recv(received, src=shard.owner)
                chunk.copy_(received)
    return whole


def copy_parts(shards: Sequence[Shard], mine: Mapping[Place, Tensor], whole: Tensor) -> None:
    """Copy what this rank holds out of a whole tensor, [N, D] or [N]."""
    for shard in shards:
        if shard.owner == dist.get_rank():
            part = _part(mine, shard, whole.dim())
            part.copy_(shard.of(whole).view_as(part))


def _part(mine: Mapping[Place, Tensor], shard: Shard, num_axes: int) -> Tensor:
    part = mine[shard.offsets] if shard.offsets in mine else mine[shard.offsets[:num_axes]]
    return part.view(part.shape[0]) if num_axes == 1 else part


def _chunks(part: Tensor) -> list[Tensor]:
    row_bytes = max(1, part[:1].numel() * part.element_size())
    return list(torch.split(part, max(1, CHUNK_BYTES // row_bytes)))


def broadcast_whole(value: Tensor) -> None:
    """Send the first rank's tensor to every rank's host, part by part."""
    flat = value.detach().view(-1)
    if len(flat):
        for part in torch.split(flat, max(1, CHUNK_BYTES // flat.element_size())):
            dist.broadcast(part, src=0)


RULES = {"cpu": ("rowwise_adagrad",), "cuda": ("rowwise_adagrad", "adam", "rowwise_adam")}
"""Rules by which FBGEMM moves sharded rows, by device."""
FUSED = {
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adam": "ADAM",
    "rowwise_adam": "PARTIAL_ROWWISE_ADAM",
}
PLANNED_BATCH = 4096
"""Examples of a rank's lookup, by which the planner estimates."""
WEIGHTS = "collection.embedding_bags.{}.weight"


def choose_rule(layer: EmbeddingBags, config: AdamWConfig, sharding: ShardingConfig) -> Rule | None:
    """Choose by which rule a layer's rows move where it is sharded; None leaves it replicated."""
    size = sum(layer.weight(name).numel() for name in layer.tables)
    device = next(layer.parameters()).device.type
    can = RULES[device]
    if config.tables == "dense" or size < sharding.shard_from:
        return None
    if config.tables != "auto" and config.tables not in can:
        raise ValueError(
            f"tables = {config.tables!r} cannot be sharded on {device}, only {list(can)}; set "
            "shared_training.optimizer.tables to one of these, or torchrun.shard_from above "
            f"{size} elements so that the tables stay whole on every rank"
        )
    rule: Rule = "adam" if config.tables == "auto" else config.tables
    return rule if rule in can else None


class ShardedTables:
    """The sharded layers of a model."""

    def __init__(self, dmp: Any, layers: Mapping[str, EmbeddingBags], rule: str) -> None:
        self._dmp, self._layers, self._rule = dmp, dict(layers), rule
        self.parameters = {id(one) for layer in layers.values() for one in layer.parameters()}
        """Identities of tensors that are on one rank alone."""

    def begin(self, learning_rate: float) -> None:
        """Set the learning rate of the step that begins."""
        optimizer = self._dmp.fused_optimizer
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        # No step: it hands the rate to the tables, whose backward moves the rows.
        optimizer.step()

    def state_of(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather whole weights at the first rank, on the host; elsewhere nothing."""
        found = {name: _whole(value) for name, value in model.state_dict().items()}
        if dist.get_rank():
            return {}
        return {name: value for name, value in found.items() if value is not None}

    def load_state(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Load whole weights; of a sharded table, this rank's part."""
        own = model.state_dict()
        if own.keys() != state.keys():
            raise ValueError(
                f"the weights lack {sorted(own.keys() - state.keys())} and have "
                f"{sorted(state.keys() - own.keys())} besides"
            )
        with torch.no_grad():
            for name, value in own.items():
                if _is_sharded(value):
                    copy_parts(list_shards(value), local_parts(value), state[name])
                else:
                    value.copy_(state[name])
        model.train(model.training)

    def moments(self) -> dict[str, Tensor]:
        """Gather the optimizer's state at the first rank, as ``optimizer_tensors`` names it."""
        found = {}
        for name, weights, mine in self._slots():
            whole = gathered_parts(list_shards(weights), mine, self._shape(name, weights))
            if whole is not None:
                found[name] = whole
        return found

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Take this rank's part of the state out of a checkpoint's tensors."""
        for name, weights, mine in self._slots():
            whole, shape = tensors.pop(name, None), self._shape(name, weights)
            if whole is None or tuple(whole.shape) != shape:
                raise ValueError(
                    f"the optimizer's state needs {name!r} of shape {shape}, got "
                    f"{'nothing' if whole is None else tuple(whole.shape)}; was it saved by "
                    "another rule?"
                )
            with torch.no_grad():
                copy_parts(list_shards(weights), mine, whole)

    def _slots(self) -> list[tuple[str, Any, dict[tuple[int, ...], Tensor]]]:
        """List each slot's name in a checkpoint, its table's weights, and this rank's parts."""
        state = self._dmp.fused_optimizer.state_dict()["state"]
        found = []
        for parameter, weights in self._weights().items():
            own = state.get(parameter, {})
            for number, slot in enumerate(SLOTS[self._rule]):
                # TorchRec calls the first slot momentum1, whatever the rule.
                keys = sorted(own, key=lambda one: not one.endswith(".momentum1"))
                key = keys[number] if keys else None
                found.append((f"{slot}/{parameter}", weights, local_parts(own[key]) if key else {}))
        return found

    def _weights(self) -> dict[str, Any]:
        """Return the sharded weights, in the same order on every rank."""
        return {
            joined_name(place, name): value
            for place, layer in self._layers.items()
            for name, value in sorted(layer.state_dict().items())
        }

    def _shape(self, name: str, weights: Any) -> tuple[int, ...]:
        """Return the shape of a slot: a number a row, or one an element."""
        one_a_row = self._rule == "rowwise_adagrad" or (
            self._rule == "rowwise_adam" and name.startswith("exp_avg_sq/")
        )
        return tuple(weights.size())[: 1 if one_a_row else 2]

    def make_whole(self, model: nn.Module, best: Mapping[str, Tensor] | None) -> None:
        """Put plain tables in place of sharded ones, on every rank's host.

        Args:
            best: Weights that it takes, at the first rank; None keeps its own.
        """
        state = self.state_of(model) if best is None else best
        for layer in self._layers.values():
            plain = PlainCollection(list(layer.tables.values()))
            layer.put(plain.to_empty(device="cpu"))
        model.to("cpu")
        if dist.get_rank() == 0:
            model.load_state_dict(dict(state))
        for value in model.state_dict().values():
            broadcast_whole(value)
        model.train(model.training)


class ShardedRowUpdates:
    """Looks rows up on the ranks that hold them."""

    refuses_ids = False

    def __init__(self, layer: EmbeddingBags, config: RowUpdateConfig) -> None:
        self.config, self._layer = config, layer
        self.weights: Mapping[str, nn.Parameter] = dict.fromkeys(
            layer.tables, nn.Parameter(torch.empty(0), requires_grad=False)
        )
        """Only the names: the weights are in the layer's collection."""
        self._tables: ShardedTables | None = None

    def attach(self, tables: ShardedTables) -> None:
        """Set the model's sharded tables."""
        self._tables = tables

    def begin(self, learning_rate: float) -> None:
        assert self._tables is not None
        self._tables.begin(learning_rate)

    def may_move(self, loss: Tensor) -> bool:
        return bool(torch.isfinite(loss.detach()))

    def pool(self, values: Mapping[str, Jagged], weights: Tensor | None) -> dict[str, Tensor]:
        from torchrec import KeyedJaggedTensor

        size = len(next(iter(values.values())).lengths())
        padded = _greatest(size, next(iter(values.values())).values.device)
        lengths = torch.cat(
            [nn.functional.pad(one.lengths(), (0, padded - size)) for one in values.values()]
        )
        rows = torch.cat([one.values for one in values.values()])
        if weights is None:
            weights = torch.ones(len(rows), device=rows.device)
        keyed = KeyedJaggedTensor(
            keys=list(values), values=rows, weights=weights, lengths=lengths.to(rows.dtype)
        )
        pooled = self._layer.collection(keyed).to_dict()
        return {name: one[:size] for name, one in pooled.items()}

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        return torch.cat(list(self.pool(values, weights).values()), dim=1)

    def state(self) -> State:
        return {}

    def num_steps(self) -> int:
        own = max((int(one.iter_cpu) for one in _kernels(self._layer)), default=0)
        # A rank may hold no table of the layer.
        return _greatest(own, torch.device("cpu"))

    def set_num_steps(self, num_steps: int) -> None:
        for one in _kernels(self._layer):
            one.iter.fill_(num_steps)
            one.iter_cpu.fill_(num_steps)


def _kernels(layer: EmbeddingBags) -> list[Any]:
    """List FBGEMM's tables of a layer on this rank."""
    # A plain list, which ``modules`` does not look into.
    lookups: Any = getattr(layer.collection, "_lookups", ())
    return [one for lookup in lookups for one in lookup.modules() if hasattr(one, "iter_cpu")]


def _greatest(count: int, device: torch.device) -> int:
    """Return the greatest count of all ranks: TorchRec wants as many examples on each."""
    found = torch.tensor([count], device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return int(found)


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "local_shards")


def _whole(value: Any) -> Tensor | None:
    """Gather a value at the first rank."""
    if not _is_sharded(value):
        own: Tensor = value.detach()
        return own
    return gathered_parts(list_shards(value), local_parts(value), tuple(value.size()))


def shard_tables(
    model: nn.Module, config: AdamWConfig, sharding: ShardingConfig
) -> ShardedTables | None:
    """Spread the large tables of a model over the ranks; the others are on each.

    Returns:
        None where no table is large.
    """
    found: dict[str, EmbeddingBags] = {}
    rules = set()
    for place, module in model.named_modules():
        if isinstance(module, EmbeddingBags):
            module.lies_on_every_rank = True
            rule = choose_rule(module, config, sharding)
            if rule is not None:
                found[place] = module
                rules.add(rule)
    if not found:
        return None
    if find_spec("torchrec") is None:
        raise ValueError(
            "tables this large are sharded by TorchRec, which is not installed; install the extra "
            "torchrec-cpu or torchrec-gpu, or raise torchrun.shard_from"
        )
    if config.max_row_norm is not None and isfinite(config.max_row_norm):
        raise ValueError(
            f"sharded tables cannot clip the gradients of their rows, and max_row_norm is "
            f"{config.max_row_norm}; set max_row_norm = inf in the training's optimizer section, "
            "or torchrun.shard_from above the tables' size so that they stay whole on every rank"
        )
    (rule,) = rules
    row_config = RowUpdateConfig(rule=rule, max_row_norm=None)
    return _sharded(model, found, row_config, sharding)


def _sharded(
    model: nn.Module,
    layers: Mapping[str, EmbeddingBags],
    config: RowUpdateConfig,
    sharding: ShardingConfig,
) -> ShardedTables:
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel

    class Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]
        """TorchRec's, which offers rows on GPUs alone; they work over gloo as well."""

        def sharding_types(self, compute_device_type: str) -> list[str]:
            return [*{*super().sharding_types(compute_device_type), "row_wise"}]

    device = next(next(iter(layers.values())).parameters()).device
    before = {
        joined_name(place, WEIGHTS.format(name)): layer.weight(name).detach().cpu()
        for place, layer in layers.items()
        for name in layer.tables
    }
    for layer in layers.values():
        layer.put(torchrec_collection(list(layer.tables.values())))
    sharder = Sharder(fused_params=fused_params(config))
    plan = planned(model, layers, sharder, sharding, device)
    dmp = DistributedModelParallel(
        model,
        device=device,
        plan=plan,
        sharders=[sharder],
        init_data_parallel=False,
        init_parameters=False,
    )
    updates = []
    for layer in layers.values():
        updates.append(ShardedRowUpdates(layer, config))
        layer.is_sharded, layer.updates = True, updates[-1]
    tables = ShardedTables(dmp, layers, config.rule)
    for one in updates:
        one.attach(tables)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name in before:
                copy_parts(list_shards(value), local_parts(value), before[name])
    return tables


def fused_params(config: RowUpdateConfig) -> dict[str, Any]:
    """Return the rule as FBGEMM's settings."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    return {
        "optimizer": EmbOptimType[FUSED[config.rule]],
        "learning_rate": 1e-9,
        "eps": config.eps,
        "beta1": config.beta1,
        "beta2": config.beta2,
    }


def planned(
    model: nn.Module,
    layers: Mapping[str, EmbeddingBags],
    sharder: Any,
    sharding: ShardingConfig,
    device: torch.device,
) -> Any:
    """Place the tables by TorchRec's planner and the free memory."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints

    kinds: Sequence[str] | None = None if sharding.sharding == "auto" else [sharding.sharding]
    constraints = {
        name: ParameterConstraints(
            sharding_types=list(kinds or ("table_wise", "row_wise", "column_wise")),
            compute_kernels=["fused"],
        )
        for layer in layers.values()
        for name in layer.tables
    }
    size = dist.get_world_size()
    topology = Topology(
        world_size=size,
        compute_device=device.type,
        local_world_size=min(size, max(1, torch.cuda.device_count() or size)),
        **memory_caps(device),
    )
    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=PLANNED_BATCH, constraints=constraints
    )
    group = dist.group.WORLD
    return planner.collective_plan(model, [sharder], group)


def memory_caps(device: torch.device) -> dict[str, int]:
    """Return the bytes that the planner may fill on a device and on a rank's part of the host."""
    size = dist.get_world_size()
    found = {"ddr_cap": os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // size}
    if device.type == "cuda":
        found["hbm_cap"] = torch.cuda.mem_get_info(device)[0]
    return found
