"""Distil a large ranker into a small one, on planted and real data: size, latency, kept accuracy.

Clicks, likes and purchases of four domains of opposite tastes, blurred by position. A student
learns from labels alone, from its teacher's logits too, or, without a teacher, from labels whose
negatives are softened by what a first run of itself believes (self-auxiliary). N@10 is of the shown
items, by feedback drawn anew for all of them as examined, the mean over tasks; AUC as of
``RankingWorld.aucs``. Latency is of 300 candidates of one request on one core. With ``--arrays``,
of ``ranker.benchmark_trunks``, several wide rankers teach one over a real data set's blend.

    python -m tests.benchmarks.distillation.benchmark_rankers --raw a.json
    python -m tests.benchmarks.distillation.benchmark_rankers --table --raw a.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric
from recsys.models.ranker.batch import Feedback, RankingBatch
from recsys.models.ranker.config import RankerConfig
from recsys.models.ranker.model import Ranker
from recsys.training.distillation import (
    DistillationConfig,
    distillation_loss,
    self_auxiliary_targets,
)
from recsys.training.loop import TrainConfig
from recsys.training.optim import ScheduleConfig
from tests.benchmarks.distillation.ranker_students import request_ms, run_real
from tests.benchmarks.distillation.table import accuracy_row, latency_row
from tests.benchmarks.harness import Row, alternating_ms, command_line, device_name, write_results
from tests.benchmarks.ranker.benchmark_trunks import loaded
from tests.benchmarks.ranker.world_training import WORLD_RANKER, train_on_requests
from tests.recsys.testing.ranking_worlds import RankingWorld, RankingWorldConfig, ranking_world

TEACHER = replace(
    WORLD_RANKER,
    embedding_dim=48,
    key_dim=16,
    num_cross_layers=2,
    hidden_dim=384,
    num_experts=8,
    top_k=4,
    head_dim=128,
)
STUDENT = replace(WORLD_RANKER, trunk="dense", hidden_dim=32)
NUM_CANDIDATES = 300
TEST_SHARE = 0.1

Loss = Callable[[Ranker, RankingBatch, Feedback], Tensor]


def of_labels(model: Ranker, batch: RankingBatch, feedback: Feedback) -> Tensor:
    return model.loss(batch, feedback)


def by_teacher(teacher: Ranker, soft_share: float) -> Loss:
    config = DistillationConfig(soft_share=soft_share)

    def loss(model: Ranker, batch: RankingBatch, feedback: Feedback) -> Tensor:
        with torch.no_grad():
            logits = teacher(batch).logits
        return distillation_loss(model, logits, batch, feedback, config)

    return loss


def by_itself(first: Ranker, trust: float) -> Loss:
    """Soften negatives by how likely a first run finds them, seen in their slot or not."""

    def loss(model: Ranker, batch: RankingBatch, feedback: Feedback) -> Tensor:
        with torch.no_grad():
            believed = first(batch).logits
        softened = self_auxiliary_targets(feedback.labels, believed, trust)
        return model.loss(batch, feedback._replace(labels=softened))

    return loss


def fit(world: RankingWorld, config: RankerConfig, loss: Loss, seed: int, steps: int) -> Ranker:
    """Train a ranker on nine requests of ten."""
    assert world.config.seed == seed
    torch.manual_seed(seed)
    model = Ranker(config, world.inputs, world.catalogue)
    num_train = round(world.config.num_requests * (1 - TEST_SHARE))
    train_on_requests(
        world,
        model,
        partial(loss, model),
        TrainConfig(
            num_steps=steps,
            schedule=ScheduleConfig(learning_rate=5e-3, warmup_steps=100),
            deterministic=False,
        ),
        num_requests=num_train,
        batch_size=256,
    )
    return model.eval()


@torch.no_grad()
def measured(world: RankingWorld, model: Ranker, seed: int) -> dict[str, float]:
    """Give N@10 and AUC on the requests that nobody learned from."""
    count = world.config.num_requests
    test = torch.arange(round(count * (1 - TEST_SHARE)), count)
    logits = model(world.batch(test)[0]).logits
    chance = torch.rand(world.relevance[test].shape, generator=torch.Generator().manual_seed(seed))
    happened = chance < world.relevance[test]  # [R, S, T]
    shape = happened.shape
    places = logits.view(shape).argsort(dim=1, descending=True).argsort(dim=1) + 1
    found = []
    for task in range(shape[2]):
        wanted = happened[:, :, task]
        counts = wanted.sum(1)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        ranks = Jagged(places[:, :, task][wanted], offsets)
        found.append(float(per_user_metric(ranks, "ndcg@10").nanmean()))
    aucs = world.aucs(logits, test).values()
    return {"ndcg@10": float(np.mean(found)), "auc": sum(aucs) / len(aucs)}


def run(seed: int, steps: int, requests: int) -> dict[str, Any]:
    """Train a teacher and its students on one world."""
    world = ranking_world(RankingWorldConfig(seed=seed, num_requests=requests))
    teacher = fit(world, TEACHER, of_labels, seed, steps)
    alone = fit(world, STUDENT, of_labels, seed, steps)
    found = {
        "teacher": teacher,
        "student of labels alone": alone,
        "student taught by the teacher": fit(world, STUDENT, by_teacher(teacher, 0.9), seed, steps),
        "student of self-auxiliary labels": fit(world, STUDENT, by_itself(alone, 0.3), seed, steps),
    }
    return {
        name: {
            **measured(world, model, seed),
            "num_parameters": sum(one.numel() for one in model.parameters()),
        }
        for name, model in found.items()
    }


def latencies() -> dict[str, float]:
    """Time a request's candidates, teacher and student in turn, milliseconds."""
    torch.set_num_threads(1)
    world = ranking_world(RankingWorldConfig(seed=0, num_requests=60))
    rows = torch.arange(NUM_CANDIDATES) + 1
    numbers = torch.zeros(NUM_CANDIDATES, 1)
    calls: dict[str, Callable[[], Tensor]] = {}
    for name, config in (("teacher", TEACHER), ("student", STUDENT)):
        model = Ranker(config, world.inputs, world.catalogue).eval()
        batch, _ = world.batch(torch.tensor([59]))
        calls[name] = lambda model=model, batch=batch: model.score_candidates(  # type: ignore[misc]
            model.reader_of(batch, 0), rows, numbers
        )
    with torch.inference_mode():
        return alternating_ms(calls, rounds=280, warmup=20, clock=time.process_time)


def rows_of(
    seeds: list[dict[str, Any]],
    ms: dict[str, float],
    label: str,
    metrics: tuple[str, ...] = ("ndcg@10", "auc"),
) -> list[Row]:
    """Lay means over seeds out: size, metrics, milliseconds of a request."""
    rows = []

    def mean(name: str, what: str) -> float:
        return float(np.mean([seed[name][what] for seed in seeds]))

    for name in seeds[0]:
        own = ms.get(name, ms["student"])
        is_taught = "taught" in name
        peer = None if name == "teacher" else "teacher"
        size = mean(name, "num_parameters") / 1e3
        rows.append(Row(name=f"{label}, {name}: parameters", value=size, unit="thousand"))
        for what in metrics:
            value, best = mean(name, what), mean("teacher", what)
            counted = is_taught and what == "ndcg@10"
            rows.append(
                accuracy_row(f"{label}, {name}: {what}", value, peer, best, is_bound=counted)
            )
        request = f"{label}, {name}: one request"
        rows.append(latency_row(request, own, peer, ms["teacher"], is_bound=is_taught))
    return rows


def write_table(paths: list[Path], arrays: Path | None, members: int) -> None:
    """Time requests here and write what was trained before."""
    read = [json.loads(path.read_text()) for path in paths]
    worlds = [seed for one in read for seed in one.get("seeds", [])]
    real = [seed for one in read for seed in one.get("real", {}).values()]
    table, notes = [], []
    if worlds:
        table += rows_of(worlds, latencies(), "planted worlds")
        notes.append(
            f"{len(worlds)} planted worlds of 60,000 requests, 2,000 steps of 256; trained "
            f"and evaluated on the world, nothing was picked on its test requests. A request has "
            f"{NUM_CANDIDATES} candidates."
        )
    if real:
        assert arrays is not None, "--arrays names the data whose sizes are timed"
        data, splits = loaded(arrays, 10, 20_000), read[-1]["splits"]
        blends = [seed.pop("blend")["ndcg@10"] for seed in real]
        ms = request_ms(data, members)
        ms["one member of the teacher"] = ms["teacher"] / members
        table += rows_of(real, ms, data.prepared.name, ("ndcg@10",))
        seeds = "; ".join(
            f"{name} " + ", ".join(f"{seed[name]['ndcg@10']:.4f}" for seed in real)
            for name in real[0]
        )
        notes.append(
            f"{data.prepared.name}: {len(real)} seeds, {splits[-1]} users, N@10 of the whole "
            f"catalogue; the blend that all correct has {np.mean(blends):.4f}. The teacher is the "
            f"mean of {members} wide rankers of the sparse trunk. By seed: {seeds}. A request has "
            f"200 candidates, its query made ready."
        )
    write_results("rankers", table, notes=" ".join(notes))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--raw", type=Path, nargs="+", required=True)
    parser.add_argument("--table", action="store_true", help="of what was trained before")
    parser.add_argument("--arrays", type=Path, help="of a real data set, in place of worlds")
    parser.add_argument("--splits", nargs="+", default=["validation"])
    parser.add_argument("--members", type=int, default=5, help="rankers of the real teacher")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5])
    chosen = parser.parse_args()
    if chosen.arrays is not None and not chosen.table:
        data = loaded(chosen.arrays, 10, 20_000)
        real = {}
        for seed in chosen.seeds:
            real[seed] = run_real(data, seed, chosen.splits, chosen.members, chosen.shares)
            document = {"data_set": data.prepared.name, "splits": chosen.splits, "real": real}
            chosen.raw[0].write_text(json.dumps({**document, "device": device_name()}, indent=1))
        return
    if not chosen.table:
        seeds = [run(seed, chosen.steps, chosen.requests) for seed in chosen.seeds]
        chosen.raw[0].write_text(json.dumps({"seeds": seeds, "device": device_name()}, indent=1))
        print(json.dumps(seeds, indent=1))
        return
    write_table(chosen.raw, chosen.arrays, chosen.members)


if __name__ == "__main__":
    main()
