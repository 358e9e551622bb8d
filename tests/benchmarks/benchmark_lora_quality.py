"""Compare a domain's adapter with full fine-tuning, one shared model and a model of its own.

On a synthetic world of four domains with conflicting tastes, or on prepared data sets joined into
one item space. For each domain and seed, N@10 among the domain's items, history left out, of: the
shared model, trained on all domains; a model of the domain's events and items alone; the shared
model fine-tuned whole; its adapters. Parts named ``new`` take one domain out of the base and adapt
to 100 users of it. All are picked by half of the validation users and told of the other half; with
``--split test`` by all validation users and told of test users, which is a look for the ledger.

    PYTHONPATH=$PWD python tests/benchmarks/benchmark_lora_quality.py --data synthetic
    PYTHONPATH=$PWD python tests/benchmarks/benchmark_lora_quality.py --data FOLDER --device cuda

FOLDER holds a folder for each of ``--names``, as ``recsys reproduce CARD --prepare`` writes them.
Parts of one seed may run as processes side by side that share ``--work``: a domain trains its own
models, then waits there for the shared one. Every number is written to ``--raw`` as it is found.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
    synthetic,
)
from lora_plans import REAL, SYNTHETIC, Plan, Plans, shortened, told_of
from lora_tables import rows_of
from lora_training import fit, groups_of
from numpy.typing import NDArray
from results_file import device_name, write_results
from safetensors.torch import load_file, save_file
from torch import nn

from recsys.data.dataset import Sequences
from recsys.data.domains import domain_positions
from recsys.layers.lora import LoraAdapter, LoraConfig
from recsys.models.adapted import centre_items
from recsys.models.item_tower import TwoTowerInputs
from recsys.models.sequence import SequenceModel

NUM_NEW_USERS = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one seed is compared by, and where what is found goes."""

    data: Data
    device: str
    seed: int
    split: Literal["validation", "test"]
    plans: Plans
    work: Path
    raw: Path | None

    def judges(self, data: Data, domain: int) -> tuple[Judge, Judge]:
        """Who picks, and who is told of."""
        sequences = data.sequences
        if self.split == "test":
            picks = Judge(data, sequences, domain, self.device)
            return picks, Judge(data, sequences, domain, self.device, split="test")
        picks, told = (Judge(data, sequences, domain, self.device, half=half) for half in (0, 1))
        return picks, told

    def note(self, **found: Any) -> None:
        """Write what was found, so that a run that is cut short has told of it."""
        line = json.dumps({"seed": self.seed, "split": self.split, **found})
        print(line[:400], flush=True)
        if self.raw:
            with self.raw.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def base_file(self, left_out: int | None = None) -> Path:
        name = "shared" if left_out is None else f"without-{left_out}"
        return self.work / f"{name}-{self.seed}.safetensors"


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


def shared_base(settings: Settings, left_out: int | None = None) -> None:
    """Train the shared model, on all domains or all but one; leave its weights in a file."""
    whole, begin = settings.data, time.perf_counter()
    domains = [one for one in range(len(whole.names)) if one != left_out]
    data, rows = (whole, None) if left_out is None else cut(whole, domains)
    model = built(data, settings)
    judges = [settings.judges(data, one) for one in domains]
    plan = settings.plans.shared
    groups = groups_of(data, data.sequences, domains, plan, model)
    fit(model, model, groups, plan, mean_judge([one for one, _ in judges]), settings.seed)
    weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
    path = settings.base_file(left_out)
    # Another process reads it as soon as it has its name.
    unfinished = path.with_suffix(f".{os.getpid()}")
    save_file(weights if rows is None else grown_weights(weights, rows, whole, data), unfinished)
    unfinished.rename(path)
    settings.note(
        kind="base",
        left_out=None if left_out is None else whole.names[left_out],
        plan=asdict(plan),
        picked=[picks(model) for picks, _ in judges],
        seconds=time.perf_counter() - begin,
    )


def awaited(path: Path) -> Path:
    while not path.exists():
        time.sleep(0.5)
    return path


def best_of(
    settings: Settings,
    kind: str,
    domain: int,
    plans: tuple[Plan, ...],
    adapted: Callable[[Plan, Judge], tuple[SequenceModel, float]],
    data: Data,
    before: dict[str, NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Train by each plan and give the users' N@10 of the one picked; note every one."""
    picks, told = settings.judges(data, domain)
    best: tuple[float, NDArray[np.float32]] | None = None
    for plan in plans:
        begin = time.perf_counter()
        model, share = adapted(plan, picks)
        seconds = time.perf_counter() - begin
        gains, picked = told.gains(model), picks(model)
        settings.note(
            kind=kind,
            domain=data.names[domain],
            plan=asdict(plan),
            value=float(gains.mean()),
            picked=picked,
            share=share,
            seconds=seconds,
            above={name: compared(gains, other) for name, other in before.items()},
        )
        if best is None or picked > best[0]:
            best = picked, gains
    assert best is not None
    return best[1]


def compared(gains: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[float, float]:
    """Give the mean difference of the same users and its standard error."""
    by_user = (gains - other).astype(np.float64)
    return float(by_user.mean()), float(by_user.std(ddof=1) / np.sqrt(len(by_user)))


class Ground:
    """A base and what of it is one domain's."""

    def __init__(self, settings: Settings, domain: int, path: Path) -> None:
        self.data, self.settings, self.domain = settings.data, settings, domain
        self.base = built(self.data, settings)
        self.base.load_state_dict(load_file(path))
        self.base.eval()
        self.num_parameters = sum(one.numel() for one in self.base.parameters())

    def adapted(
        self, plan: Plan, sequences: Sequences, judge: Judge | None
    ) -> tuple[SequenceModel, float]:
        """Train a copy of the base, whole or by an adapter; its parameters, of the base's."""
        model = copy.deepcopy(self.base)
        trained: nn.Module = model
        if plan.targets:
            torch.manual_seed(self.settings.seed)
            config = LoraConfig(
                targets=plan.targets,
                tables=plan.tables,
                rank=plan.rank,
                alpha=plan.alpha,
                dropout=plan.dropout,
                # What is too large is told of.
                max_share=1.0,
            )
            rows = torch.from_numpy(np.flatnonzero(self.data.own(self.domain)))
            adapter = LoraAdapter(
                model, config, base_digest="not asked", rows=dict.fromkeys(plan.tables, rows)
            )
            if plan.centred:
                centre_items(model, adapter, rows, plan.centred)
            trained = adapter.attach()
        groups = groups_of(self.data, sequences, [self.domain], plan, model)
        if plan.replayed:
            others = [one for one in range(len(self.data.names)) if one != self.domain]
            groups += groups_of(self.data, self.data.sequences, others, plan, model)
        fit(trained, model, groups, plan, judge, self.settings.seed)
        return model, sum(one.numel() for one in trained.parameters()) / self.num_parameters


def of_domain(settings: Settings, domain: int) -> None:
    """Train a domain's own models, then adapt the shared one."""
    data, plans = settings.data, settings.plans
    part, _ = cut(data, [domain])

    def own_model(plan: Plan, judge: Judge) -> tuple[SequenceModel, float]:
        model = built(part, settings)
        groups = groups_of(part, part.sequences, [domain], plan, model)
        fit(model, model, groups, plan, judge, settings.seed)
        return model, 1.0

    own = best_of(settings, "own", domain, plans.own, own_model, part, {})
    ground = Ground(settings, domain, awaited(settings.base_file()))
    picks, told = settings.judges(data, domain)
    shared = told.gains(ground.base)
    settings.note(
        kind="shared",
        domain=data.names[domain],
        value=float(shared.mean()),
        picked=picks(ground.base),
        num_users=len(shared),
        above={"own": compared(shared, own)},
    )
    found = {"own": own, "shared": shared}

    def adapted(plan: Plan, judge: Judge) -> tuple[SequenceModel, float]:
        return ground.adapted(plan, data.sequences, judge)

    kinds = {"full": plans.full, **plans.adapters}
    for kind, some in kinds.items():
        found[kind] = best_of(settings, kind, domain, some, adapted, data, dict(found))
    for kind, gains in found.items():
        above = {name: compared(gains, other) for name, other in found.items() if name != kind}
        settings.note(
            kind="picked",
            of=kind,
            domain=data.names[domain],
            value=float(gains.mean()),
            above=above,
        )


def few_users(whole: Sequences, own: NDArray[np.bool_], draw: int) -> Sequences:
    """Leave 100 users of a domain something to learn from, and nobody else."""
    inside = np.unique(whole.users_of(domain_positions(whole, "train", own)))
    chosen = np.random.default_rng(draw).choice(inside, NUM_NEW_USERS, replace=False)
    kept = np.isin(np.arange(whole.num_user_rows), chosen)
    starts = whole.offsets[:-1]
    return replace(
        whole,
        train_end=np.where(kept, whole.train_end, starts),
        # Nobody else may pick the step either.
        validation_end=np.where(kept, whole.validation_end, starts),
    )


def newly_met(settings: Settings, domain: int, num_draws: int = 1) -> None:
    """Adapt a base that never met the domain to 100 of its users; the others judge."""
    shared_base(settings, domain)
    ground = Ground(settings, domain, settings.base_file(domain))
    data = settings.data
    others, told = settings.judges(data, domain)
    before = told.gains(ground.base)
    base = {"base": float(before.mean()), "others before": others(ground.base)}
    for draw in range(num_draws):
        few = few_users(data.sequences, data.own(domain), 1000 * settings.seed + draw)
        for number, plan in enumerate(settings.plans.fresh):
            begin = time.perf_counter()
            model, share = ground.adapted(plan, few, None)
            seconds = time.perf_counter() - begin
            gains = told.gains(model)
            settings.note(
                kind="new",
                domain=data.names[domain],
                draw=draw,
                number=number,
                plan=asdict(plan),
                **base,
                value=float(gains.mean()),
                above={"base": compared(gains, before)},
                others=others(model),
                share=share,
                seconds=seconds,
            )


def run(settings: Settings, parts: list[str]) -> None:
    names = settings.data.names
    for part in parts:
        kind, _, name = part.rpartition(" ")
        if part == "base":
            shared_base(settings)
        elif kind == "new":
            newly_met(settings, names.index(name))
        else:
            of_domain(settings, names.index(part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="synthetic", help="'synthetic' or a folder of folders")
    parser.add_argument("--names", nargs="+", default=["beauty", "sports", "toys"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--users", type=int, help="of each real domain, drawn by the seed")
    parser.add_argument("--passes", type=float, default=1.0, help="share of the planned passes")
    parser.add_argument(
        "--parts", nargs="+", help="base, a domain, or 'new DOMAIN'; by default everything"
    )
    parser.add_argument("--work", type=Path, help="where bases are left; by default a scratch")
    parser.add_argument("--name", help="of the results; by default from data and split")
    parser.add_argument("--raw", type=Path, help="a line of JSON for every number found")
    parser.add_argument("--from-raw", type=Path, nargs="+", help="make the table from such files")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    kind = "synthetic" if chosen.data == "synthetic" else "real"
    plans = shortened(SYNTHETIC if kind == "synthetic" else REAL, chosen.passes)
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else device_name()
    scratch = tempfile.TemporaryDirectory()
    raw = chosen.raw or Path(scratch.name) / "raw.jsonl"
    for seed in () if chosen.from_raw else chosen.seeds:
        if kind == "synthetic":
            data = synthetic(seed)
        else:
            data = prepared(Path(chosen.data), tuple(chosen.names))
            data = data if chosen.users is None else drawn(data, chosen.users, seed)
        settings = Settings(
            data=data,
            device=chosen.device,
            seed=seed,
            split=chosen.split,
            plans=plans,
            work=chosen.work or Path(scratch.name),
            raw=raw,
        )
        settings.note(kind="device", name=device)
        everything = ["base", *data.names, *(f"new {name}" for name in data.names)]
        run(settings, chosen.parts or everything)
    if chosen.parts:
        return
    lines = [
        json.loads(line)
        for path in chosen.from_raw or [raw]
        for line in path.read_text().splitlines()
    ]
    name = chosen.name or f"lora_quality_{kind}" + ("_test" if chosen.split == "test" else "")
    rows, seeds = rows_of(lines)
    notes = told_of(plans, split=chosen.split, users=chosen.users, num_seeds=len(seeds))
    names = {one["name"] for one in lines if one["kind"] == "device"}
    write_results(name, rows, notes=notes, device=", ".join(sorted(names)))


if __name__ == "__main__":
    main()
