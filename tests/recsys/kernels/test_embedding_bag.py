"""Embedding bags against float64; without a GPU, the kernels run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys.kernels.embedding_bag.layout import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    TableLayout,
    bias_corrections,
)
from recsys.kernels.embedding_bag.op import FusedEmbeddingBags
from tests.recsys.kernels.devices import DEVICE, ON_A_GPU, RUNS_KERNELS
from tests.recsys.layers.embedding.test_row_updates import layer_of, random_batch, step
from tests.recsys.testing.refusals import assert_refused

TYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Norm of the error over the norm of the truth; of half types, half a step of the row's type."""
MIXED = TableLayout((50, 7, 30), (100, 1, 3), (0, 1, 2, 0))
UNIFORM = TableLayout((60, 40), (32, 32), (0, 1, 0))
RULES = tuple(Optimizer)


def batch_of(layout: TableLayout, batch: int = 6, seed: int = 0) -> list[Tensor]:
    """Ids with repeats inside bags, empty bags, and offsets and sample weights of them."""
    generator = torch.Generator().manual_seed(seed)
    num_features = len(layout.feature_tables)
    lengths = torch.randint(0, 6, (num_features * batch,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = []
    for feature, table in enumerate(layout.feature_tables):
        count = int(lengths[feature * batch : (feature + 1) * batch].sum())
        ids.append(torch.randint(0, layout.num_rows[table], (count,), generator=generator) // 2)
    weights = torch.randn(int(lengths.sum()), generator=generator)
    return [torch.cat(ids).to(DEVICE), offsets.to(DEVICE), weights.to(DEVICE)]


def hash_texts(
    layout: TableLayout, config: OptimizerConfig, dtype: torch.dtype
) -> FusedEmbeddingBags:
    bags = FusedEmbeddingBags(layout, config, learning_rate=0.1, dtype=dtype, device=DEVICE)
    generator = torch.Generator().manual_seed(1)
    bags.weights.copy_(torch.randn(layout.num_elements, generator=generator))
    return bags


def error(found: Tensor, truth: Tensor) -> float:
    difference = (found.double().cpu() - truth.double().cpu()).norm()
    return float(difference / truth.double().norm().clamp_min(1e-30))


def run_both(
    bags: FusedEmbeddingBags, batch: list[Tensor], weighted: bool, seed: int = 3
) -> tuple[list[Tensor], list[Tensor]]:
    """One forward and backward here and in float64: output, rows, state."""
    ids, offsets, samples = batch[0], batch[1], batch[2] if weighted else None
    truth, first, second, rate = (
        one.double().cpu() for one in (bags.weights, bags.first, bags.second, bags.learning_rate)
    )
    state = OptimizerState(first, second, bags.step.cpu() + 1, rate)
    out = bags(ids, offsets, samples)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    out.backward(grad)
    wide = None if samples is None else samples.double().cpu()
    args = (ids.cpu(), offsets.cpu(), wide)
    expected = plain_step(bags.layout, bags.config, truth, state, args, grad.double().cpu())
    return [out.detach(), bags.weights, bags.first, bags.second], [expected, truth, first, second]


def plain_step(
    layout: TableLayout,
    config: OptimizerConfig,
    weights: Tensor,
    state: OptimizerState,
    batch: tuple[Tensor, Tensor, Tensor | None],
    grad: Tensor,
) -> Tensor:
    """Look up by torch, and apply the optimizer to the rows that occur, in place; return sums."""
    ids, offsets, samples = batch
    size = (len(offsets) - 1) // len(layout.feature_tables)
    tables = [
        layout.table(weights, one).clone().requires_grad_() for one in range(len(layout.dims))
    ]
    columns, occur = [], [[torch.zeros(0).long()] for _ in tables]
    for feature, table in enumerate(layout.feature_tables):
        begins = offsets[feature * size : (feature + 1) * size + 1]
        own = slice(int(begins[0]), int(begins[-1]))
        occur[table].append(ids[own])
        weighted = None if samples is None else samples[own]
        found = torch.nn.functional.embedding_bag(
            ids[own],
            tables[table],
            begins[:-1] - begins[0],
            mode="sum",
            per_sample_weights=weighted,
        )
        columns.append(found)
    out = torch.cat(columns, dim=1)
    out.backward(grad)
    for table, looked_up in enumerate(tables):
        rows = torch.cat(occur[table]).unique()
        move(layout, config, weights, state, table, rows, looked_up.grad[rows])
    return out.detach()


def move(
    layout: TableLayout,
    config: OptimizerConfig,
    weights: Tensor,
    state: OptimizerState,
    table: int,
    rows: Tensor,
    grad: Tensor,
) -> None:
    """Move some rows of a table by their gradients, as each rule is defined."""
    change, keys = grad, layout.table_keys[table] + rows
    if config.rule == Optimizer.ROWWISE_ADAGRAD:
        state.second[keys] += grad.square().mean(1)
        change = grad / (state.second[keys].sqrt() + config.epsilon)[:, None]
    elif config.rule != Optimizer.SGD:
        correct = bias_corrections(state.step, config).double()
        first = layout.table(state.first, table)
        first[rows] = first[rows] * config.beta1 + grad * (1 - config.beta1)
        if config.rule == Optimizer.ADAM:
            second, at, square = layout.table(state.second, table), rows, grad.square()
        else:
            second, at, square = state.second[:, None], keys, grad.square().mean(1, keepdim=True)
        second[at] = second[at] * config.beta2 + square * (1 - config.beta2)
        spread = (second[at] / correct[1]).sqrt() + config.epsilon
        change = first[rows] / correct[0] / spread
    layout.table(weights, table)[rows] -= state.learning_rate * change


CASES = [
    (MIXED, False),
    (MIXED, True),
    (UNIFORM, True),
    (UNIFORM, False),
    (TableLayout((20,), (257,), (0,)), False),
]


@pytest.mark.parametrize("rule", RULES)
@RUNS_KERNELS
def test_agrees_with_float64(rule: Optimizer) -> None:
    # Interpreted, each rule meets one case and type, the last the widest too; on a GPU all.
    turn = int(rule)
    some = CASES[turn:] if rule == RULES[-1] else CASES[turn : turn + 1]
    for layout, weighted in CASES if ON_A_GPU else some:
        for dtype in TYPES if ON_A_GPU else TYPES[turn % 3 : turn % 3 + 1]:
            bags = hash_texts(layout, OptimizerConfig(rule=rule), dtype)
            for seed in range(2):
                batch = batch_of(layout, 6 if ON_A_GPU else 2, seed)
                found, truth = run_both(bags, batch, weighted, seed)
                assert error(found[0], truth[0]) < 2e-6
                assert error(found[-3], truth[-3]) < TOLERANCE[dtype]
                assert error(found[-2], truth[-2]) < 1e-5
                assert error(found[-1], truth[-1]) < 1e-5
                truth[-3].copy_(found[-3])


@RUNS_KERNELS
def test_runs_of_every_length_at_every_place() -> None:
    """Lengths around one to four chunks of 64, placed anywhere in one, and around short runs."""
    short = [2, 3, 1, 4, 5, 6, 7, 8, 9, 1, 10, 2, 8]
    long = [1, 2, 63, 64, 65, 3, 127, 1, 128, 129, 5, *[191, 192, 193, 1, 256] * ON_A_GPU]
    lengths = torch.tensor([*long, *short])
    layout = TableLayout((len(lengths),), (4,), (0,))
    for first in (0, 1, 37) if ON_A_GPU else (37,):
        generator = torch.Generator().manual_seed(first)
        ids = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[first:]
        ids = ids[torch.randperm(len(ids), generator=generator)].to(DEVICE)
        offsets = torch.arange(len(ids) + 1, device=DEVICE)
        bags = hash_texts(layout, OptimizerConfig(), torch.float32)
        found, truth = run_both(bags, [ids, offsets, ids.float()], False)
        assert error(found[-3], truth[-3]) < 2e-6
        assert error(found[-1], truth[-1]) < 1e-5


@RUNS_KERNELS
def test_ids_out_of_range_give_zeros_and_move_nothing() -> None:
    layout = TableLayout((10, 4), (8, 16), (0, 1))
    bags = hash_texts(layout, OptimizerConfig(), torch.float32)
    before = bags.weights.clone()
    ids = torch.tensor([10, -1, 2**40, 4, -(2**40)], device=DEVICE)
    offsets = torch.tensor([0, 2, 3, 4, 5], device=DEVICE)
    out = bags(ids, offsets)
    assert not out.any()
    out.sum().backward()
    assert torch.equal(bags.weights, before)
    assert not bags.second.any()


@pytest.mark.parametrize("rule", RULES if ON_A_GPU else [Optimizer.ADAM])
@RUNS_KERNELS
def test_skip_moves_nothing_and_grad_scale_scales(rule: Optimizer) -> None:
    config = OptimizerConfig(rule=rule)
    ids, offsets, _ = batch_of(UNIFORM, batch=24 if ON_A_GPU else 3)
    kept, moved, scaled = (hash_texts(UNIFORM, config, torch.float32) for _ in range(3))
    before = {name: one.clone() for name, one in kept.state_dict().items()}
    out = kept(ids, offsets, skip=torch.ones(1, dtype=torch.int32, device=DEVICE))
    (out * torch.nan).sum().backward()
    assert all(torch.equal(one, before[name]) for name, one in kept.state_dict().items())
    scale = torch.full((1,), 0.25, device=DEVICE)
    moved(ids, offsets).sum().backward()
    no_skip = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    (scaled(ids, offsets, grad_scale=scale, skip=no_skip) * 4).sum().backward()
    assert not torch.equal(moved.weights, kept.weights)
    assert torch.equal(moved.weights, scaled.weights)


@pytest.mark.parametrize("rule", RULES if ON_A_GPU else RULES[1:3])
@RUNS_KERNELS
def test_rows_are_clipped_and_a_row_without_a_finite_gradient_stays(rule: Optimizer) -> None:
    """Bags of one id, a hot id (a long run) and an id with NaN; clipped by hand in the truth."""
    layout = TableLayout((9,), (20,), (0,))
    ids = torch.tensor([3, 4, 5, *[7] * 70], device=DEVICE)
    offsets = torch.arange(len(ids) + 1, device=DEVICE)
    grad = torch.randn(len(ids), 20, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    grad[0], grad[1] = 100 * grad[0], 1e-3 * grad[1]
    grad[2, 3] = torch.nan
    clipped = hash_texts(layout, OptimizerConfig(rule=rule, max_row_norm=0.5), torch.float32)
    plain = hash_texts(layout, OptimizerConfig(rule=rule), torch.float32)
    before = clipped.table(0).clone()
    for _ in range(2):
        clipped(ids, offsets).backward(grad)
        by_hand = grad[[0, 1]]
        by_hand = torch.cat([by_hand, grad[3:].sum(0, keepdim=True)])
        by_hand *= (0.5 / by_hand.norm(dim=1, keepdim=True)).clamp(max=1)
        plain(ids[[0, 1, 3]], offsets[:4]).backward(by_hand)
    assert torch.equal(clipped.table(0)[5], before[5])
    assert clipped.weights.isfinite().all()
    assert error(clipped.weights, plain.weights) < 2e-6
    assert error(clipped.first, plain.first) < 2e-5


def test_says_what_is_wrong() -> None:
    bags = FusedEmbeddingBags(MIXED, OptimizerConfig())
    ids, offsets = torch.zeros(3).long(), torch.zeros(5).long()
    assert_refused(
        {
            r"ids must be \[n\] int32 or int64": lambda: bags(torch.ones(3), offsets),
            r"F \* B \+ 1 entries with F = 4, got 2": lambda: bags(ids, torch.zeros(2).long()),
            "get no gradient": lambda: bags(ids, offsets, torch.ones(3, requires_grad=True)),
            "must be contiguous float32": lambda: bags(ids, offsets, torch.ones(1)),
        }
    )


@pytest.mark.interpreted(only=True)
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "adam"])
def test_kernels_move_rows_and_name_their_state_as_torch_does(rule: str) -> None:
    ours, theirs = layer_of("triton", rule, 0.5), layer_of("torch", rule, 0.5)
    for number in range(2):
        for bags in (ours, theirs):
            step(bags, random_batch(number, num_examples=4))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    state = ours.update_state()
    for name, value in theirs.update_state().items():
        if name.startswith("step/") and "adam" not in rule:
            continue  # no rule but Adam depends on the steps
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)
