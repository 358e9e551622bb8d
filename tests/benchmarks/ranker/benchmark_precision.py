"""Train the ranker in float32, bfloat16 and float16 on one GPU and serve each in float32.

Both low precisions are autocast: weights, optimizer, router and loss stay float32, float16's loss
is scaled (``torch.amp.GradScaler``). The worlds have a known truth, and seeds are paired. The gap
between training and serving is how far the probabilities that training computes are from those
that the float32 artefact serves, on requests not trained on.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch

from recsys.models.ranker.config import RankerConfig, at_equal_compute, flops_of
from recsys.models.ranker.model import Ranker
from recsys.training.optim import AdamWConfig, ScheduleConfig, adamw, lr_at
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.ranker.benchmark_worlds import SPARSE, TEST_SHARE
from tests.benchmarks.ranker.world_training import on_device
from tests.recsys.testing.ranking_worlds import RankingWorld, RankingWorldConfig, ranking_world

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Found:
    precision: str
    seed: int
    auc: float
    """Mean over the tasks of what is served, in float32."""
    mean_gap: float
    """Mean distance of a probability in training's precision from the served one."""
    largest_gap: float
    step_ms: float
    skipped_steps: int


def cast(precision: str) -> torch.autocast:
    dtype = DTYPES[precision]
    return torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def trained(
    world: RankingWorld, base: RankerConfig, precision: str, num_steps: int, batch_size: int
) -> Found:
    seed = world.config.seed
    torch.manual_seed(seed)
    model = Ranker(base, world.inputs, world.catalogue).cuda().train()
    optimizer = adamw(model, AdamWConfig(tables="dense"))
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "float16")
    schedule = ScheduleConfig(learning_rate=8e-3, warmup_steps=min(100, num_steps))
    num_train = round(world.config.num_requests * (1 - TEST_SHARE))
    draws = torch.Generator("cuda").manual_seed(seed)
    took, skipped = [], 0
    for step in range(num_steps):
        begin = time.perf_counter()
        requests = torch.randint(num_train, (batch_size,), generator=draws, device="cuda")
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, schedule, num_steps)
        batch, feedback = world.batch(requests)
        with cast(precision):
            ranked = model(batch)
        loss = model.loss_of(ranked, feedback)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        took.append((time.perf_counter() - begin) * 1e3)
    auc, mean_gap, largest_gap = judged(model, world, precision, num_train)
    return Found(
        precision=precision,
        seed=seed,
        auc=auc,
        mean_gap=mean_gap,
        largest_gap=largest_gap,
        step_ms=statistics.median(took),
        skipped_steps=skipped,
    )


@torch.no_grad()
def judged(
    model: Ranker, world: RankingWorld, precision: str, num_train: int
) -> tuple[float, float, float]:
    requests = torch.arange(num_train, world.config.num_requests, device="cuda")
    batch, _ = world.batch(requests)
    served = model.eval()(batch).logits
    with cast(precision):
        computed = model(batch).logits
    gaps = (torch.sigmoid(computed.float()) - torch.sigmoid(served)).abs()
    aucs = world.aucs(served, requests)
    return statistics.mean(aucs.values()), float(gaps.mean()), float(gaps.max())


def rows_of(trunk: str, found: list[Found]) -> list[Row]:
    rows = []
    full = {one.seed: one for one in found if one.precision == "float32"}
    for precision in DTYPES:
        own = [one for one in found if one.precision == precision]
        name = f"{trunk}, {precision}"
        gains = [100 * (one.auc - full[one.seed].auc) for one in own]
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        rows += [
            Row(name=f"{name}: mean AUC served", value=statistics.mean(o.auc for o in own)),
            Row(
                name=f"{name}: AUC minus float32's (+- {error:.3f})",
                value=statistics.mean(gains),
                unit="points",
            ),
            Row(
                name=f"{name}: training against serving, mean distance of a probability",
                value=statistics.mean(o.mean_gap for o in own),
            ),
            Row(
                name=f"{name}: training against serving, largest distance",
                value=max(o.largest_gap for o in own),
            ),
            Row(
                name=f"{name}: step, median",
                value=statistics.median(o.step_ms for o in own),
                unit="ms",
            ),
            Row(
                name=f"{name}: steps skipped for overflow",
                value=sum(o.skipped_steps for o in own),
                unit="steps",
            ),
        ]
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--batch", type=int, default=512, help="requests of a step")
    parser.add_argument("--embedding-dim", type=int, default=SPARSE.embedding_dim)
    parser.add_argument("--hidden", type=int, default=32, help="of an expert")
    parser.add_argument("--trunks", nargs="+", default=["sparse", "dense"])
    parser.add_argument("--name", default="precision")
    arguments = parser.parse_args()
    sparse = replace(SPARSE, embedding_dim=arguments.embedding_dim, hidden_dim=arguments.hidden)
    found: dict[str, list[Found]] = {trunk: [] for trunk in arguments.trunks}
    for number in range(arguments.seeds):
        config = RankingWorldConfig(
            seed=arguments.first_seed + number, num_requests=arguments.requests
        )
        plain = ranking_world(config)
        world = on_device(plain, "cuda")
        world = replace(world, content=plain.content)
        for trunk in arguments.trunks:
            base = at_equal_compute(sparse, world.inputs, trunk)
            for precision in DTYPES:
                one = trained(world, base, precision, arguments.steps, arguments.batch)
                found[trunk].append(one)
                print(trunk, one, flush=True)
    rows = [row for trunk, own in found.items() for row in rows_of(trunk, own)]
    notes = (
        f"{flops_of(sparse, world.inputs)['total']} operations a candidate. "
        f"{arguments.requests} requests of six slots, the last 15% for the test, "
        f"{arguments.steps} steps of {arguments.batch} requests; {arguments.seeds} seeds from "
        f"{arguments.first_seed}. A step is timed whole, host and device. With all weights float32 "
        "and served in float32, a precision shows only in the distance and in what was learned."
    )
    write_results(arguments.name, rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
