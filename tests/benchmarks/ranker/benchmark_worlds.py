"""Train rankers of equal cost on worlds with a known truth, and hold them against that truth.

Each world has four domains whose tastes conflict, three tasks and a planted curve of slots; nothing
names the domain. AUC is of scores without position against what happened in the first slot, beside
the AUC of the true chances. Routing is judged by the information that a candidate's best expert
gives of its domain, balance by MaxVio, both on requests that were not trained on. Settings were
chosen on the worlds of seeds 1 to 25 and 101 to 112, which are none of those reported.

Several machines can share the work: give each its seeds or models, ``--kept FOLDER --only-keep``,
and write the table from all that was kept by the same call without ``--only-keep``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

from recsys.layers.moe.routing import expert_use, load_by_group
from recsys.models.ranker.config import (
    RankerConfig,
    RankerInputs,
    Trunk,
    at_equal_compute,
    flops_of,
    num_fields,
)
from recsys.models.ranker.model import Ranker
from recsys.training.loop import TrainConfig
from recsys.training.optim import ScheduleConfig
from tests.benchmarks.harness import Row, command_line, device_name, write_results
from tests.benchmarks.ranker.world_training import WORLD_RANKER, on_device, train_on_requests
from tests.recsys.testing.ranking_worlds import (
    RankingWorld,
    RankingWorldConfig,
    ranking_world,
    routing_information,
)

TEST_SHARE = 0.15
FIRST_SEED = 30
SPARSE = replace(WORLD_RANKER, router_certainty=0.1, router_evenness=0.5)


class Model(NamedTuple):
    """A trunk at the cost of the sparse one with the same changes."""

    trunk: Trunk
    changes: Mapping[str, Any] = {}


CROSSED = "dense, its trunk's operations in a cross layer"
BEHIND = {"num_cross_layers": 1}
BEHIND_LOW = {"num_cross_layers": 1, "cross_rank": 8}
MODELS = {
    "sparse": Model("sparse"),
    "dense": Model("dense"),
    "shared_bottom": Model("shared_bottom"),
    CROSSED: Model("dense"),
    "sparse behind a cross layer": Model("sparse", BEHIND),
    "dense behind a cross layer": Model("dense", BEHIND),
    "sparse behind one of rank 8": Model("sparse", BEHIND_LOW),
    "dense behind one of rank 8": Model("dense", BEHIND_LOW),
}
PAIRS = (
    ("sparse", "dense"),
    ("sparse", "shared_bottom"),
    ("sparse", CROSSED),
    ("sparse", "dense behind a cross layer"),
    ("sparse behind a cross layer", "dense behind a cross layer"),
    ("sparse behind one of rank 8", "dense behind one of rank 8"),
)
"""What is compared; the goal is for the first."""


@dataclass(frozen=True, kw_only=True)
class Job:
    model: str
    """Of MODELS."""
    hidden_dim: int
    seed: int
    num_requests: int
    num_steps: int
    batch_size: int
    device: str
    precision: str
    kept: str | None


@dataclass(frozen=True, kw_only=True)
class Found:
    job: Job
    auc: dict[str, float]
    true_auc: dict[str, float]
    curve_error: float
    """Largest distance of a slot's learned chance from the planted one."""
    information: float
    max_violation: float
    dead_experts: int
    by_domain: list[list[float]]

    @property
    def mean_auc(self) -> float:
        return mean(self.auc.values())

    @property
    def gap(self) -> float:
        """How far the mean AUC is below the truth's."""
        return mean(self.true_auc.values()) - self.mean_auc


def world_of(job: Job) -> RankingWorld:
    config = RankingWorldConfig(seed=job.seed, num_requests=job.num_requests)
    return ranking_world(config)


def run(job: Job) -> Found:
    """Train one trunk on one world and judge it, unless an earlier run did."""
    name = "-".join(str(value) for value in asdict(job).values() if value != job.kept)
    name = name.replace(" ", "_").replace(",", "").replace("'", "")
    path = Path(job.kept) / f"{name}.json" if job.kept else None
    if path is not None and path.exists():
        return Found(**{**json.loads(path.read_text()), "job": job})
    found = trained(job)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**asdict(found), "job": None}))
    return found


def config_of(job: Job, inputs: RankerInputs) -> RankerConfig:
    trunk, changes = MODELS[job.model]
    base = replace(SPARSE, hidden_dim=job.hidden_dim, **changes)
    if job.model != CROSSED:
        return at_equal_compute(base, inputs, trunk)
    # A cross layer of the widest rank that leaves a trunk of a few units.
    aim = flops_of(base, inputs)["total"]
    crossed = [
        replace(base, trunk="dense", hidden_dim=4, num_cross_layers=1, cross_rank=rank)
        for rank in range(1, num_fields(inputs) * base.embedding_dim)
    ]
    return min(crossed, key=lambda config: abs(flops_of(config, inputs)["total"] - aim))


def trained(job: Job) -> Found:
    torch.set_num_threads(1)
    plain = world_of(job)
    config = config_of(job, plain.inputs)
    torch.manual_seed(job.seed)
    model = Ranker(config, plain.inputs, plain.catalogue).to(job.device)
    world = on_device(plain, job.device)
    num_train = round(job.num_requests * (1 - TEST_SHARE))
    train_on_requests(
        world,
        model,
        model.loss,
        TrainConfig(
            num_steps=job.num_steps,
            schedule=ScheduleConfig(learning_rate=8e-3, warmup_steps=100),
            precision=job.precision,  # type: ignore[arg-type]
            deterministic=False,
        ),
        num_requests=num_train,
        batch_size=job.batch_size,
        device=job.device,
    )
    return judged(job, model, world, torch.arange(num_train, job.num_requests, device=job.device))


@torch.no_grad()
def judged(job: Job, model: Ranker, world: RankingWorld, test: torch.Tensor) -> Found:
    ranked = model.eval()(world.batch(test)[0])
    assert model.examination is not None
    planted = torch.tensor(world.config.examination, device=job.device)
    information, max_violation, dead, table = math.nan, math.nan, 0, []
    if ranked.routing is not None:
        experts = ranked.routing.experts.cpu()
        domains = world.domain_of_impressions(test).cpu()
        use = expert_use(experts, model.config.num_experts)
        max_violation, dead = use.max_violation, use.dead_experts
        information = routing_information(experts[:, 0], domains)
        table = load_by_group(
            experts[:, :1], domains, model.config.num_experts, world.config.num_domains
        ).tolist()
    return Found(
        job=job,
        auc=world.aucs(ranked.logits, test),
        true_auc=world.aucs(world.relevance[test].flatten(0, 1), test),
        curve_error=float((model.examination.curve() - planted).abs().max()),
        information=information,
        max_violation=max_violation,
        dead_experts=dead,
        by_domain=table,
    )


def of_model(found: Sequence[Found], model: str) -> list[Found]:
    return sorted((one for one in found if one.job.model == model), key=lambda one: one.job.seed)


def rows_of(found: Sequence[Found]) -> list[Row]:
    sparse = of_model(found, "sparse")
    seeds = len(sparse)
    gap = mean(one.gap for one in sparse)
    worst = {
        "information": min(one.information for one in sparse),
        "violation": max(one.max_violation for one in sparse),
        "dead": max(one.dead_experts for one in sparse),
        "curve": max(one.curve_error for one in sparse),
    }
    mean_information = mean(one.information for one in sparse)
    rows = [
        Row(
            name="truth: mean AUC of the tasks",
            value=mean(mean(one.true_auc.values()) for one in sparse),
        ),
        Row(
            name="sparse: AUC below the truth's",
            value=100 * gap,
            unit="points",
            goal="<= 1 point",
            met=gap <= 0.01,
        ),
        Row(
            name=f"routing and domain, NMI, mean of {seeds} seeds",
            value=mean_information,
            at_least=0.8,
        ),
        Row(
            name=f"routing and domain, NMI, worst of {seeds} seeds",
            value=worst["information"],
            at_least=0.8,
        ),
        Row(name=f"MaxVio, worst of {seeds} seeds", value=worst["violation"], at_most=0.1),
        Row(
            name=f"dead experts, worst of {seeds} seeds",
            value=worst["dead"],
            goal="0",
            met=worst["dead"] == 0,
        ),
        Row(
            name=f"chance of a slot, largest error of {seeds} seeds",
            value=worst["curve"],
            goal="recovers the planted curve (<= 0.03)",
            at_most=0.03,
        ),
    ]
    for model in MODELS:
        own = of_model(found, model)
        if own:
            name = f"{model}: mean AUC, {len(own)} seeds"
            rows.append(Row(name=name, value=mean(one.mean_auc for one in own)))
    for pair in PAIRS:
        first, second = (of_model(found, model) for model in pair)
        if first and second:
            rows.append(difference(first, second))
    return rows


def difference(better: Sequence[Found], other: Sequence[Found]) -> Row:
    """One model minus another, on the seeds that both have."""
    base = {one.job.seed: one.mean_auc for one in other}
    gains = [100 * (one.mean_auc - base[one.job.seed]) for one in better if one.job.seed in base]
    error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    pair = (better[0].job.model, other[0].job.model)
    aimed = pair == PAIRS[0]
    return Row(
        name=f"{pair[0]} - {pair[1]}, paired over {len(gains)} seeds (+- {error:.2f})",
        value=mean(gains),
        unit="points of AUC",
        goal=">= 0.5" if aimed else None,
        at_least=0.5 if aimed else None,
    )


def notes_of(found: Sequence[Found], arguments: argparse.Namespace) -> str:
    sparse = of_model(found, "sparse")
    first = sparse[0].job
    inputs = world_of(replace(first, num_requests=10)).inputs
    costs = []
    for model in dict.fromkeys(one.job.model for one in found):
        config = config_of(replace(first, model=model), inputs)
        cross = f", cross layer of rank {config.cross_rank or 'all'}" * config.num_cross_layers
        costs.append(
            f"{model} {flops_of(config, inputs)['total']} (hidden {config.hidden_dim}, heads "
            f"{config.head_dim}{cross})"
        )
    lines = [
        f"{arguments.requests} requests of six slots, the last 15% for the test; {arguments.steps} "
        f"steps of {arguments.batch} requests, {arguments.precision}; seeds from "
        f"{arguments.first_seed}.",
        f"Operations of a candidate: {'; '.join(costs)}.",
        "A sparse trunk has four experts, of which a candidate visits one, by softmax scores of "
        "its own field, and is drawn to one "
        f"(router_certainty {SPARSE.router_certainty}, router_evenness {SPARSE.router_evenness}).",
        "",
        "Sparse trunks, seed by seed (share of each domain's candidates by best expert):",
        "",
        "| seed | gap, points | NMI | MaxVio | slot error | domains by expert, % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in sparse:
        shares = "; ".join(
            " ".join(f"{100 * share:.0f}" for share in domain) for domain in one.by_domain
        )
        lines.append(
            f"| {one.job.seed} | {100 * one.gap:.2f} | {one.information:.3f} | "
            f"{one.max_violation:.3f} | {one.curve_error:.3f} | {shares} |"
        )
    return "\n".join(lines)


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    return [
        Job(
            model=model,
            hidden_dim=arguments.hidden,
            seed=arguments.first_seed + number,
            num_requests=arguments.requests,
            num_steps=arguments.steps,
            batch_size=arguments.batch,
            device=arguments.device,
            precision=arguments.precision,
            kept=arguments.kept,
        )
        for number in range(arguments.seeds)
        for model in arguments.models
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="number of worlds")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=2_500)
    parser.add_argument("--batch", type=int, default=512, help="requests of a step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=SPARSE.hidden_dim, help="of an expert")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--kept", help="folder of finished trainings, to resume after a stop")
    parser.add_argument("--only-keep", action="store_true", help="leave the table to another call")
    parser.add_argument("--device-name", help="of the kept trainings")
    parser.add_argument("--name", default="worlds")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(run, jobs_of(arguments)))
    if arguments.only_keep:
        return
    device = arguments.device_name or (
        device_name() if arguments.device == "cpu" else torch.cuda.get_device_name()
    )
    write_results(arguments.name, rows_of(found), notes=notes_of(found, arguments), device=device)


if __name__ == "__main__":
    main()
