"""Compare a domain's adapter with full fine-tuning, one shared model and a model of its own.

On a synthetic world of four domains with conflicting tastes, or on prepared data sets joined into
one item space. For each domain and seed, N@10 among the domain's items, history left out, of: the
shared model, trained on all domains; a model of the domain's events and items alone; the shared
model fine-tuned whole; its adapters. A last part takes one domain out of the base and adapts to 100
users of it. All are picked by half of the validation users and told of the other half; with
``--split test`` by all validation users and told of test users, which is a look for the ledger.

    PYTHONPATH=$PWD python tests/benchmarks/benchmark_lora_quality.py --data synthetic
    PYTHONPATH=$PWD python tests/benchmarks/benchmark_lora_quality.py --data FOLDER --device cuda

FOLDER holds a folder for each of ``--names``, as ``recsys reproduce CARD --prepare`` writes them.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lora_domains import (
    Data,
    Judge,
    cut,
    drawn,
    grown_weights,
    prepared,
    rows_of_weights,
    synthetic,
)
from lora_plans import REAL, SYNTHETIC, Plan, Plans, shortened, told_of
from lora_tables import METRIC, NEW, rows_of
from numpy.typing import NDArray
from results_file import device_name, write_results
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recsys.data.dataset import Sequences
from recsys.data.domains import domain_positions, domain_window_batch, domain_windows
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows, window_batch
from recsys.layers.lora import LoraAdapter, LoraConfig
from recsys.models.item_tower import TwoTowerInputs
from recsys.models.sequence import SequenceModel
from recsys.training.loop import TrainConfig, train
from recsys.training.optim import AdamWConfig, ScheduleConfig, adamw
from recsys.training.progress import SilentTracker

NUM_NEW_USERS = 100


class Quiet:
    def show(self, step: int, num_steps: int, **values: float) -> None:
        pass


@cache
def loaded(data: str, names: tuple[str, ...], users: int | None, seed: int) -> Data:
    """Read the data once a process."""
    if data == "synthetic":
        return synthetic(seed)
    whole = prepared(Path(data), names)
    return whole if users is None else drawn(whole, users, seed)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one process is told."""

    data: str
    names: tuple[str, ...]
    device: str
    seed: int
    threads: int
    users: int | None
    split: Literal["validation", "test"]
    plans: Plans

    def load(self) -> Data:
        torch.set_num_threads(self.threads)
        return loaded(self.data, self.names, self.users, self.seed)

    def judges(self, data: Data, domain: int) -> tuple[Judge, Judge]:
        """Who picks, and who is told of."""
        sequences = data.sequences
        if self.split == "test":
            picks = Judge(data, sequences, domain, self.device)
            return picks, Judge(data, sequences, domain, self.device, split="test")
        picks, told = (Judge(data, sequences, domain, self.device, half=half) for half in (0, 1))
        return picks, told


def fit(
    trained: nn.Module,
    model: SequenceModel,
    sequences: Sequences,
    own: NDArray[np.bool_] | None,
    plan: Plan,
    judge: Callable[[SequenceModel], float],
    seed: int,
) -> None:
    """Train parameters of ``trained`` by the model's loss; the best of ten validations stays."""
    torch.manual_seed(seed)
    device = next(model.parameters()).device
    windows = training_windows(sequences, "train", model.config.max_length)
    if own is not None:
        windows = domain_windows(sequences, windows, own)
    size = min(plan.batch_size, len(windows))
    order = BatchOrder(len(windows), size, seed)
    num_steps = max(10, round(plan.epochs * len(windows) / size))

    def loss_at(step: int) -> Tensor:
        chosen = order.indices(step)
        starts, ends = windows.starts[chosen], windows.ends[chosen]
        if own is None:
            batch = window_batch(sequences, starts, ends)
        else:
            batch = domain_window_batch(sequences, starts, ends, own)
        return model.loss(batch.to(device))

    train(
        trained,
        loss_at,
        adamw(trained, AdamWConfig(tables="dense")),
        TrainConfig(
            num_steps=num_steps,
            schedule=ScheduleConfig(learning_rate=plan.learning_rate, warmup_steps=num_steps // 20),
            eval_every=max(1, num_steps // 10),
            patience=None,
            deterministic=False,
        ),
        evaluate=lambda _: {METRIC: judge(model)},
        tracker=SilentTracker(),
        progress=Quiet(),
    )


def built(data: Data, settings: Settings) -> SequenceModel:
    torch.manual_seed(settings.seed)
    inputs = TwoTowerInputs(
        num_item_rows=len(data.domain_of_item),
        content_dim=data.catalogue.content.shape[1],
        num_categories=data.num_categories,
    )
    model = SequenceModel(settings.plans.model, inputs, data.catalogue, data.counts())
    return model.to(settings.device)


def mean_judge(judges: list[Judge]) -> Callable[[SequenceModel], float]:
    return lambda model: sum(judge(model) for judge in judges) / len(judges)


def shared_base(settings: Settings, path: Path, left_out: int | None = None) -> Path:
    """Train the shared model, on all domains or all but one; leave its weights in a file."""
    whole = settings.load()
    domains = [one for one in range(len(whole.names)) if one != left_out]
    data, rows = (whole, None) if left_out is None else cut(whole, domains)
    model = built(data, settings)
    judges = [settings.judges(data, one)[0] for one in domains]
    plan = settings.plans.shared
    fit(model, model, data.sequences, None, plan, mean_judge(judges), settings.seed)
    weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights if rows is None else grown_weights(weights, rows, whole, data), path)
    return path


def said(found: dict[str, float], name: str, plan: Plan | None = None) -> dict[str, float]:
    """Print what was found, so that a run that is cut short has told of it."""
    print(json.dumps({"of": name, "plan": plan and asdict(plan), **found}), flush=True)
    return found


def own_model(settings: Settings, domain: int) -> dict[str, float]:
    """Train on the domain's events and items alone, histories cut likewise."""
    data, _ = cut(settings.load(), [domain])
    model = built(data, settings)
    picks, told = settings.judges(data, domain)
    fit(model, model, data.sequences, None, settings.plans.own, picks, settings.seed)
    return said({"own": told(model)}, data.names[domain])


class Ground:
    """One domain's data as an adapting model meets it, and the base over it."""

    def __init__(self, settings: Settings, domain: int, path: Path, rivals: str) -> None:
        whole, rows = settings.load(), None
        if rivals == "domain":
            whole, rows = cut(whole, [domain])
        self.data, self.settings = whole, settings
        self.own = whole.own(domain)
        self.base = built(whole, settings)
        weights = load_file(path)
        self.num_parameters = sum(weights[name].numel() for name, _ in self.base.named_parameters())
        self.base.load_state_dict(rows_of_weights(weights, rows))
        self.base.eval()

    def adapted(
        self, plan: Plan, sequences: Sequences, picks: Judge
    ) -> tuple[SequenceModel, float]:
        """Train a copy of the base, whole or by an adapter; its parameters, of the base's."""
        model = copy.deepcopy(self.base)
        trained: nn.Module = model
        if plan.targets:
            torch.manual_seed(self.settings.seed)
            # What an adapter may have is of the whole base, not of the part that is here.
            config = LoraConfig(
                targets=plan.targets, rank=plan.rank, alpha=plan.alpha, max_share=1.0
            )
            trained = LoraAdapter(model, config, base_digest="of the whole base").attach()
        fit(trained, model, sequences, self.own, plan, picks, self.settings.seed)
        num_parameters = sum(one.numel() for one in trained.parameters())
        return model, num_parameters / self.num_parameters


def tried(settings: Settings, domain: int, path: Path, plan: Plan) -> dict[str, float]:
    """Adapt by one plan."""
    ground = Ground(settings, domain, path, plan.rivals)
    picks, told = settings.judges(ground.data, domain)
    found = {"shared": told(ground.base), "users": float(told.num_users)}
    begin = time.perf_counter()
    model, share = ground.adapted(plan, ground.data.sequences, picks)
    seconds = time.perf_counter() - begin
    value = {"value": told(model), "picked": picks(model), "picked before": picks(ground.base)}
    found |= {**value, "share": share, "seconds": seconds}
    return said(found, ground.data.names[domain], plan)


def new_domain(settings: Settings, domain: int, path: Path, plan: Plan) -> dict[str, float]:
    """Adapt a base that never met the domain to 100 of its users; the others judge."""
    ground = Ground(settings, domain, path, plan.rivals)
    whole = ground.data.sequences
    inside = np.unique(whole.users_of(domain_positions(whole, "train", ground.own)))
    rng = np.random.default_rng(settings.seed)
    kept = np.isin(np.arange(whole.num_user_rows), rng.choice(inside, NUM_NEW_USERS, replace=False))
    starts = whole.offsets[:-1]
    few = replace(
        whole,
        train_end=np.where(kept, whole.train_end, starts),
        # Nobody else may pick the step either.
        validation_end=np.where(kept, whole.validation_end, starts),
    )
    picks = Judge(ground.data, few, domain, settings.device)
    others, told = settings.judges(ground.data, domain)
    begin = time.perf_counter()
    model, share = ground.adapted(plan, few, picks)
    seconds = time.perf_counter() - begin
    found = {
        "base": told(ground.base),
        "adapter": told(model),
        "gain of others": others(model) - others(ground.base),
        "seconds": seconds,
        "share": share,
        "users": float(told.num_users),
    }
    return said(found, f"{NEW} {ground.data.names[domain]}", plan)


Found = dict[str, Any]


def best_of(tries: list[dict[str, float]]) -> dict[str, float]:
    """Take what the picking users like best."""
    return max(tries, key=lambda one: one["picked"])


def compared(settings: Settings, pool: ProcessPoolExecutor, folder: Path) -> dict[str, Found]:
    """Train the shared model, each domain's own, fine-tuned and adapted ones of one seed."""
    plans, names = settings.plans, settings.load().names
    kinds = {"full": plans.full, **plans.adapters}
    domains = range(len(names))
    base = pool.submit(shared_base, settings, folder / "shared.safetensors")
    own = [pool.submit(own_model, settings, domain) for domain in domains]
    path = base.result()
    tries = {
        (domain, kind): [pool.submit(tried, settings, domain, path, one) for one in some]
        for domain in domains
        for kind, some in kinds.items()
    }
    found: dict[str, Found] = {}
    for domain, name in enumerate(names):
        found[name] = dict(own[domain].result())
        for kind in kinds:
            best = best_of([one.result() for one in tries[domain, kind]])
            found[name] |= {"shared": best["shared"], kind: best["value"]}
            found[name] |= {f"share {kind}": best["share"], f"seconds {kind}": best["seconds"]}
    return found


def newly_met(settings: Settings, pool: ProcessPoolExecutor, folder: Path) -> dict[str, Found]:
    """Leave each domain out of a base, then adapt that to a few of its users.

    A domain's plan is the one that the validation users of the other domains gained most by, since
    one of 100 users has nobody to choose a plan by.
    """
    names, plans = settings.load().names, settings.plans.fresh
    bases = [
        pool.submit(shared_base, settings, folder / f"without-{domain}.safetensors", domain)
        for domain in range(len(names))
    ]
    tries = [
        [pool.submit(new_domain, settings, domain, base.result(), plan) for plan in plans]
        for domain, base in enumerate(bases)
    ]
    told = [[one.result() for one in some] for some in tries]
    gains = np.array([[one["gain of others"] for one in some] for some in told])
    found: dict[str, Found] = {}
    for domain, name in enumerate(names):
        chosen = int(np.delete(gains, domain, axis=0).mean(0).argmax())
        found[f"{NEW} {name}"] = {
            **told[domain][chosen],
            "plan": asdict(plans[chosen]),
            "gains of others, by plan": gains[domain].tolist(),
        }
    return found


PARTS = {"compared": compared, "new": newly_met}


def run(settings: Settings, workers: int, parts: list[str]) -> dict[str, Found]:
    """Train everything of one seed, processes side by side."""
    found: dict[str, Found] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        for part in parts:
            found |= PARTS[part](settings, pool, Path(scratch))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="synthetic", help="'synthetic' or a folder of folders")
    parser.add_argument("--names", nargs="+", default=["beauty", "sports", "toys"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--users", type=int, help="of each real domain, drawn by the seed")
    parser.add_argument("--passes", type=float, default=1.0, help="share of the planned passes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", help="of the results; by default from data and split")
    parser.add_argument("--raw", type=Path, help="write every number there as JSON too")
    parser.add_argument("--from-raw", type=Path, nargs="+", help="make the table from such files")
    chosen = parser.parse_args()
    kind = "synthetic" if chosen.data == "synthetic" else "real"
    plans = shortened(SYNTHETIC if kind == "synthetic" else REAL, chosen.passes)
    begin, seeds = time.perf_counter(), []
    settings = Settings(
        data=chosen.data,
        names=tuple(chosen.names),
        device=chosen.device,
        seed=0,
        threads=chosen.threads,
        users=chosen.users,
        split=chosen.split,
        plans=plans,
    )
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else device_name()
    seconds = 0.0
    for path in chosen.from_raw or ():
        stored = json.loads(path.read_text())
        seeds += stored["seeds"]
        device, seconds = stored["device"], max(seconds, stored["seconds"])
    for seed in () if chosen.from_raw else chosen.seeds:
        seeds.append(run(replace(settings, seed=seed), chosen.workers, chosen.parts))
        seconds = time.perf_counter() - begin
        print(json.dumps(seeds[-1]), flush=True)
        if chosen.raw:
            document = {"seeds": seeds, "device": device, "seconds": seconds}
            chosen.raw.write_text(json.dumps(document, indent=1))
    name = chosen.name or f"lora_quality_{kind}" + ("_test" if chosen.split == "test" else "")
    notes = told_of(
        plans, split=chosen.split, users=chosen.users, num_seeds=len(seeds), seconds=seconds
    )
    write_results(name, rows_of(seeds), notes=notes, device=device)


if __name__ == "__main__":
    main()
