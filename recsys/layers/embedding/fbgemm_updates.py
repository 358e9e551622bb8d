"""Embedding rows that FBGEMM's fused tables move inside the backward, on CUDA and on CPU.

The one place that knows FBGEMM. The kinds of our own are in ``layers/row_updates.py``;
`row_updates_for` chooses between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged
from recsys.kernels.choice import runs
from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.embedding.row_updates import (
    SLOTS,
    JoinedPools,
    KernelRowUpdates,
    RowUpdateConfig,
    TorchRowUpdates,
    same_places,
)
from recsys.layers.embedding.tables import RowUpdates, State, TableConfig, joined


def row_updates_for(layer: EmbeddingBags, config: RowUpdateConfig) -> RowUpdates:
    """Choose what moves the rows of a layer: our kernels, FBGEMM or plain torch."""
    weights = {name: layer.weight(name) for name in layer.tables}
    tables, first = list(layer.tables.values()), next(layer.parameters())
    on_cpu = layer.wanted == "auto" and first.device.type == "cpu"
    kind: Any = TorchRowUpdates
    if layer.backend == "triton" and runs("embedding_bag", first):
        kind = KernelRowUpdates
    elif layer.backend == "torchrec" or (on_cpu and fbgemm_can(tables, config)):
        kind = FbgemmRowUpdates
    updates: RowUpdates = kind(tables, weights, config)
    return updates


def fbgemm_can(tables: Sequence[TableConfig], config: RowUpdateConfig) -> bool:
    """Return whether FBGEMM is there and can move these rows on a CPU."""
    return (
        config.rule in ("sgd", "rowwise_adagrad")
        and config.max_row_norm is None
        and all(table.embedding_dim % 4 == 0 for table in tables)
        and find_spec("fbgemm_gpu") is not None
    )


def fbgemm_tables(
    tables: Sequence[TableConfig],
    feature_tables: list[int],
    config: RowUpdateConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Build FBGEMM's fused tables, on CPU or CUDA."""
    if not find_spec("fbgemm_gpu"):
        raise ValueError(
            "row updates of backend 'torchrec' need FBGEMM, which is not installed; install the "
            "extra torchrec-cpu or torchrec-gpu, or take backend 'triton' or 'torch'"
        )
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        BoundsCheckMode,
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rules = {
        "sgd": EmbOptimType.EXACT_SGD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adam": EmbOptimType.ADAM,
        "rowwise_adam": EmbOptimType.PARTIAL_ROWWISE_ADAM,
    }
    cuda = device.type == "cuda"
    if not cuda and config.rule in ("adam", "rowwise_adam"):
        raise ValueError(
            f"FBGEMM has rule {config.rule!r} on CUDA only; on {device} take 'sgd' or "
            "'rowwise_adagrad', or backend 'torch'"
        )
    odd = [table.name for table in tables if table.embedding_dim % 4]
    if odd:
        raise ValueError(
            f"FBGEMM needs widths that are multiples of 4, tables {odd} are not; pad them or take "
            "backend 'triton' or 'torch'"
        )
    place = (
        (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        if cuda
        else (EmbeddingLocation.HOST, ComputeDevice.CPU)
    )
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(table.num_rows, table.embedding_dim, *place) for table in tables],
        feature_table_map=feature_tables,
        optimizer=rules[config.rule],
        learning_rate=0.0,
        eps=config.eps,
        beta1=config.beta1,
        beta2=config.beta2,
        weights_precision=SparseType.from_dtype(dtype),
        output_dtype=SparseType.FP32,
        stochastic_rounding=False,
        # An error on a CPU; on CUDA it would end the process.
        bounds_check_mode=BoundsCheckMode.WARNING if cuda else BoundsCheckMode.FATAL,
        device=device,
    )


class FbgemmRowUpdates(JoinedPools):
    """By FBGEMM's fused tables: every rule on CUDA, SGD and row-wise Adagrad on CPU too."""

    refuses_ids = True

    def __init__(
        self,
        tables: Sequence[TableConfig],
        weights: Mapping[str, nn.Parameter],
        config: RowUpdateConfig,
    ) -> None:
        if config.max_row_norm is not None:
            raise ValueError(
                "FBGEMM does not clip rows: set max_row_norm to None, or take backend 'triton' or "
                "'torch'"
            )
        self.config, self.weights = config, weights
        super().__init__(tables)
        device = weights[tables[0].name].device
        self.tbe = fbgemm_tables(tables, self.feature_tables, config, device)
        names = [table.name for table in tables]
        self.views = dict(zip(names, self.tbe.split_embedding_weights(), strict=True))
        for name, view in self.views.items():
            view.data.copy_(weights[name].data)
            weights[name].data = view.data
        self.grad_scale: Tensor | None = None
        self._steps_before = 0
        self._ids = torch.empty(0, dtype=torch.int64)

    def begin(self, learning_rate: float) -> None:
        self.tbe.set_learning_rate(learning_rate)

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        same_places(self.weights, self.views)
        ids, offsets = joined(values, self.features, self._room(values))
        self._steps_before = self.num_steps()
        pooled: Tensor = self.tbe(ids.long(), offsets.long(), weights)
        if self.grad_scale is not None:
            scale = self.grad_scale
            pooled.register_hook(lambda grad: grad * scale)  # type: ignore[no-untyped-call]
        return pooled

    def _room(self, values: Mapping[str, Jagged]) -> Tensor | None:
        """Reuse memory for the ids, since new memory costs a CPU more than they do.

        Only the backward reads them again, and autograd refuses one that comes after the next
        lookup.
        """
        own = [values[feature].values for feature in self.features]
        if len(own) == 1 or own[0].is_cuda or any(one.dtype != torch.int64 for one in own):
            return None
        count = sum(map(len, own))
        if len(self._ids) < count:
            self._ids = torch.empty(count + count // 4, dtype=torch.int64)
        return self._ids[:count]

    def may_move(self, loss: Tensor) -> bool:
        """Wait for the loss: FBGEMM's backward has no switch on the device."""
        finite = math.isfinite(loss.detach())
        if not finite:
            # The lookup may have counted this step already.
            self.set_num_steps(self._steps_before)
        return finite

    def state(self) -> State:
        slots = SLOTS[self.config.rule]
        if not slots:
            return {}
        by_table = self.tbe.split_optimizer_states()
        return {
            slot: {name: by_table[place][number] for place, name in enumerate(self.views)}
            for number, slot in enumerate(slots)
        }

    def num_steps(self) -> int:
        return int(self.tbe.iter_cpu)

    def set_num_steps(self, num_steps: int) -> None:
        self.tbe.iter.fill_(num_steps)
        self.tbe.iter_cpu.fill_(num_steps)
