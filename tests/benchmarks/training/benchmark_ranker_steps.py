"""Time a ranker's training steps on a GPU as CUDA graphs and launched one by one.

    python -m tests.benchmarks.training.benchmark_ranker_steps

Both are whole trainings by the same loop: batches drawn on the host, balanced experts, gradients,
clipping, AdamW. The data are made up: lists of 200 candidates, whose labels follow from features
and items. The last rows train a mixture of the sizes of ``benchmark_moe`` and take its kernels'
time from a profile of the steps, so the rate is that of a training and not of a layer alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged, JaggedBatch, offsets_of
from recsys.fitting.spec import TrainingRun, run_training
from recsys.kernels.choice import without
from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.training.captured import FixedShapeLoss
from recsys.training.passes import TrainingConfig
from recsys.training.progress import SilentTracker, Tracker
from recsys.training.ranker_config import RankerFitConfig
from recsys.training.ranker_fit import ranker_loss, scores_of
from recsys.training.ranking_examples import Outcomes, RankingExamples, labels_of
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.benchmark_moe import (
    DIM,
    NUM_EXPERTS,
    NUM_ROWS,
    TOP_K,
    by_torch,
    matmul_rate,
)
from tests.benchmarks.training.profiled_steps import NUM_STEPS, Clock, ProfiledSteps, profiled

LENGTH, NUM_FEATURES, CONTENT_DIM = 200, 14, 384
OF_THE_OPTIMIZER = ("multi_tensor", "adam", "Adam")
"""Parts of the names of kernels that are not the layer's: clipping and AdamW."""
TIMED_STEPS, TRAINED_STEPS = 250, 400


class Size(NamedTuple):
    """A made-up data set and a ranker of it."""

    name: str
    num_items: int
    num_queries: int
    config: RankerConfig
    batch_size: int


SIZES = (
    Size("default ranker, 3,706 items", 3_706, 6_040, RankerConfig(), 64),
    Size("default ranker, 12,101 items", 12_101, 8_000, RankerConfig(), 64),
    Size(
        "512 wide, 32 experts of 2,048, 12,101 items",
        12_101,
        8_000,
        RankerConfig(embedding_dim=128, hidden_dim=2_048, num_experts=NUM_EXPERTS, top_k=TOP_K),
        256,
    ),
)


def inputs_of(size: Size) -> RankerInputs:
    names = ("score", *(f"feature_{number}" for number in range(1, NUM_FEATURES)))
    return RankerInputs(
        num_item_rows=size.num_items + 1,
        tasks=("next", "like"),
        content_dim=CONTENT_DIM,
        num_categories=20,
        user_features={"age": 8},
        candidate_dense=names,
        base_feature="score",
    )


def examples_of(size: Size) -> RankingExamples:
    """Lists in which an item's own appeal and one feature decide which candidate is the target."""
    generator = torch.Generator().manual_seed(1)
    count, num_items = size.num_queries, size.num_items
    rows = torch.randint(1, num_items + 1, (count, LENGTH), generator=generator)
    features = torch.randn(count, LENGTH, NUM_FEATURES, generator=generator)
    features[:, :, 0] = features[:, :, 0].sort(dim=1, descending=True).values
    appeal = torch.randn(num_items + 1, generator=generator)
    chance = features[:, :, 0] + features[:, :, 1].abs() + appeal[rows]
    place = torch.multinomial(chance.softmax(1), 1, generator=generator)
    targets = Jagged.one_each(rows.gather(1, place)[:, 0])
    values = torch.randint(1, 6, (count,), generator=generator).float()
    labels = labels_of(rows, targets, Outcomes.of_values(values), ("next", "like"), 4.0)
    lengths = torch.randint(3, 51, (count,), generator=generator)
    events = torch.randint(1, num_items + 1, (int(lengths.sum()),), generator=generator)
    ages = torch.randint(0, 8, (count,), generator=generator)
    queries = JaggedBatch(
        {"history": Jagged(events, offsets_of(lengths)), "user.age": Jagged.one_each(ages)}
    )
    return RankingExamples(queries, targets, Candidates(rows, features), labels)


def catalogue_of(size: Size) -> ItemCatalogue:
    content = torch.randn(size.num_items + 1, CONTENT_DIM)
    content[0] = 0
    return ItemCatalogue(content, Jagged.one_each(torch.arange(size.num_items + 1) % 20))


def fit(
    size: Size,
    examples: RankingExamples,
    device: torch.device,
    num_steps: int,
    curve: Tracker,
) -> Ranker:
    """Train a ranker on nine lists of ten."""
    torch.manual_seed(0)
    counts = torch.ones(size.num_items + 1)
    model = Ranker(size.config, inputs_of(size), catalogue_of(size), counts).to(device)
    chosen = torch.arange(size.num_queries * 9 // 10)
    training = RankerFitConfig(batch_size=size.batch_size)
    loss = ranker_loss(model, examples, chosen, training, 0, device)
    run = TrainingRun(seed=0, device=device, curve=curve)
    steps = replace(training.for_steps(num_steps, num_steps), log_every=50)
    run_training(model, loss, training, steps, run, None)
    return model


def first_places(model: Ranker, size: Size, examples: RankingExamples) -> float:
    """Share of the other lists whose target is ranked among the first ten."""
    held_out = torch.arange(size.num_queries * 9 // 10, size.num_queries)[:500]
    scores = scores_of(model.eval(), examples, held_out)
    target = examples.labels[held_out][:, :, 0] == 1
    best = scores.masked_fill(~target, -torch.inf).max(1).values
    return float(((scores > best[:, None]).sum(1) < 10).float().mean())


def ranker_rows(size: Size, device: torch.device) -> list[Row]:
    examples = examples_of(size)

    def step_ms() -> float:
        fit(size, examples, device, TIMED_STEPS, clock := Clock())
        return clock.step_ms()

    ours = profiled(lambda curve: fit(size, examples, device, NUM_STEPS, curve), device)
    with without("captured_step"):
        launched = step_ms()
    with by_torch():
        grouped = step_ms()
    with without("routed_experts"):
        batched = step_ms()
    with without("all"):
        plain = step_ms()
    name = f"{size.name}: a step"
    about = f"{name}, {ours.launches:.0f} kernels, busy {ours.busy_ms:.3g} ms"
    launches = "launched one by one"
    return [
        Row(name=about, value=ours.step_ms, unit="ms", peer=launches, peer_value=launched),
        *(
            Row(name=f"{name}, {peer}", value=ours.step_ms, unit="ms", peer=peer, peer_value=other)
            for peer, other in (
                ("experts by torch's grouped products", grouped),
                ("experts by padded blocks", batched),
                ("torch", plain),
            )
        ),
    ]


def quality_row(size: Size, device: torch.device) -> Row:
    """Compare what captured and launched steps have learned."""
    examples = examples_of(size)
    hits = first_places(fit(size, examples, device, TRAINED_STEPS, SilentTracker()), size, examples)
    with without("captured_step"):
        model = fit(size, examples, device, TRAINED_STEPS, SilentTracker())
    peer = f"launched one by one {first_places(model, size, examples):.3f}"
    name = f"{size.name}: target in the first ten after {TRAINED_STEPS} steps"
    return Row(name=name, value=hits, peer=peer)


def moe_steps(hidden_dim: int, device: torch.device) -> ProfiledSteps:
    """Train a mixture to give a tenth of its rows back."""
    torch.manual_seed(0)
    config = SparseMoeConfig(
        dim=DIM, hidden_dim=hidden_dim, num_experts=NUM_EXPERTS, top_k=TOP_K, compute="grouped"
    )
    model: nn.Module = SparseMoe(config).to(device)
    rows = torch.randn(NUM_ROWS, DIM, device=device).bfloat16()
    chosen = torch.arange(1)

    def loss_of(_: Tensor) -> Tensor:
        output: Tensor = model(rows).output
        return (output.float() - 0.1 * rows).square().mean()

    def loss_at(step: int) -> Tensor:
        return loss_of(chosen)

    training = TrainingConfig(precision="bfloat16")
    loss = FixedShapeLoss(loss_at, lambda step: chosen, loss_of)
    return profiled(
        lambda curve: run_training(
            model,
            loss,
            training,
            replace(training.for_steps(NUM_STEPS, NUM_STEPS), log_every=50),
            TrainingRun(seed=0, device=device, curve=curve),
            None,
        ),
        device,
    )


def moe_rows(hidden_dim: int, device: torch.device, rate: float) -> list[Row]:
    steps = moe_steps(hidden_dim, device)
    ours = {name: share for name, share in steps.shares.items() if not of_optimizer(name)}
    layer_ms = sum(ours.values()) * steps.busy_ms
    work = 3 * 4 * NUM_ROWS * TOP_K * DIM * hidden_dim
    name = f"mixture of {NUM_EXPERTS} experts, D {DIM}, F {hidden_dim}, {NUM_ROWS} rows"
    return [
        Row(name=f"{name}: a training step, busy {steps.busy_ms:.3g} ms", value=steps.step_ms,
            unit="ms"),
        Row(name=f"{name}: its layer and loss", value=layer_ms, unit="ms"),
        Row(
            name=f"{name}: share of the matmul rate",
            value=work / (layer_ms * 1e-3) / rate,
            at_least=0.4,
        ),
    ]  # fmt: skip


def of_optimizer(kernel: str) -> bool:
    return any(part in kernel for part in OF_THE_OPTIMIZER)


def main() -> None:
    command_line(__doc__).parse_args()
    device = torch.device("cuda")
    rate = matmul_rate()
    rows = [Row(name="bf16 product of 8192 x 8192", value=rate / 1e12, unit="TFLOP/s")]
    for hidden_dim in (1_024, 2_048):
        rows += moe_rows(hidden_dim, device, rate)
    for size in SIZES:
        rows += ranker_rows(size, device)
        print(*rows[-4:], sep="\n", flush=True)
    rows.append(quality_row(SIZES[0], device))
    notes = (
        "A step is by the clock, its busy time that of its kernels; `torch` is the same code with "
        "`RECSYS_KERNELS_OFF=all`. Weights are float32 under bfloat16 autocast, so a mixture's "
        "time holds their casts and those of its gradients."
    )
    write_results("ranker_steps", rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
