"""Compare a domain's adapter with full fine-tuning, one shared model and a model of its own.

On a synthetic world of four domains with conflicting tastes, or on prepared data sets joined into
one item space. For each domain and seed, N@10 among the domain's items, history left out, of: the
shared model, trained on all domains; a model of the domain's events and items alone; the shared
model fine-tuned whole; its adapters. The part ``new`` takes each domain in turn out of the base and
adapts that to 100 users of it. All are picked by half of the validation users and reported on the
other half; with ``--split test`` picked by all validation users and reported on test users, which
is a look for the ledger.

    python -m tests.benchmarks.adapters.benchmark_quality --data synthetic
    python -m tests.benchmarks.adapters.benchmark_quality --data FOLDER --device cuda

FOLDER holds arrays for each of ``--names``, by ``--prepare`` of a card in benchmarks/reproduction.
Workers are threads, which share a GPU better than processes do; since they share the generators of
random numbers too, only one worker's numbers can be had again. Every number is written to ``--raw``
as it is found, and ``--from-raw`` makes the table of several such files.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from recsys.data.dataset import Sequences
from recsys.data.domains import domain_positions
from recsys.layers.lora.linear import LoraAdapter, LoraConfig
from recsys.models.adapted.model import centre_items
from recsys.models.item_tower import FeatureSizes
from recsys.models.sequence.model import SequenceModel
from tests.benchmarks.adapters.domains import (
    Data,
    Judge,
    cut,
    drawn,
    grown_weights,
    prepared,
    synthetic,
)
from tests.benchmarks.adapters.plans import REAL, SYNTHETIC, Plan, Plans, protocol_of, shortened
from tests.benchmarks.adapters.tables import rows_of
from tests.benchmarks.adapters.training import fit, groups_of
from tests.benchmarks.harness import command_line, device_name, write_results

NUM_NEW_USERS = 100
NUM_DRAWS = 3
"""Of those users, by each seed."""
Gains = NDArray[np.float32]


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
        """Judges that select, and that report."""
        sequences = data.sequences
        if self.split == "test":
            picks = Judge(data, sequences, domain, self.device)
            return picks, Judge(data, sequences, domain, self.device, split="test")
        picks, reported = (
            Judge(data, sequences, domain, self.device, half=half) for half in (0, 1)
        )
        return picks, reported

    def note(self, **found: Any) -> None:
        """Write what was found, so that a run that is cut short leaves it."""
        line = json.dumps({"seed": self.seed, "split": self.split, **found})
        print(line[:400], flush=True)
        if self.raw:
            with self.raw.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def noted(
        self, kind: str, domain: int, plan: Plan | None, picked: float, gains: Gains, **more: float
    ) -> tuple[float, Gains]:
        """Note what one model reached; give what picks it, and the users' N@10."""
        self.note(
            kind=kind,
            domain=self.data.names[domain],
            plan=plan and asdict(plan),
            value=float(gains.mean()),
            picked=picked,
            num_users=len(gains),
            **more,
        )
        return picked, gains

    def base_file(self, left_out: int | None = None) -> Path:
        name = "shared" if left_out is None else f"without-{left_out}"
        return self.work / f"{name}-{self.seed}.safetensors"


def built(data: Data, settings: Settings) -> SequenceModel:
    torch.manual_seed(settings.seed)
    inputs = FeatureSizes(
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
    save_file(weights if rows is None else grown_weights(weights, rows, whole, data), path)
    settings.note(
        kind="base",
        left_out=None if left_out is None else whole.names[left_out],
        plan=asdict(plan),
        picked=[picks(model) for picks, _ in judges],
        seconds=time.perf_counter() - begin,
    )


def compared(gains: Gains, other: Gains) -> tuple[float, float]:
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
                # An adapter that is too large is refused.
                max_share=1.0,
            )
            rows = torch.from_numpy(np.flatnonzero(self.data.own(self.domain)))
            adapter = LoraAdapter(
                model, config, base_digest="not checked", rows=dict.fromkeys(plan.tables, rows)
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


def own_model(settings: Settings, domain: int, plan: Plan) -> tuple[float, Gains]:
    """Train on the domain's events and items alone."""
    part, _ = cut(settings.data, [domain])
    picks, reported = settings.judges(part, domain)
    begin = time.perf_counter()
    model = built(part, settings)
    groups = groups_of(part, part.sequences, [domain], plan, model)
    fit(model, model, groups, plan, picks, settings.seed)
    seconds = time.perf_counter() - begin
    return settings.noted("own", domain, plan, picks(model), reported.gains(model), seconds=seconds)


def adapted_model(settings: Settings, domain: int, kind: str, plan: Plan) -> tuple[float, Gains]:
    """Adapt the shared model, whole or by low rank."""
    ground = Ground(settings, domain, settings.base_file())
    picks, reported = settings.judges(settings.data, domain)
    begin = time.perf_counter()
    model, share = ground.adapted(plan, settings.data.sequences, picks)
    seconds = time.perf_counter() - begin
    found = picks(model), reported.gains(model)
    return settings.noted(kind, domain, plan, *found, seconds=seconds, share=share)


def shared_model(settings: Settings, domain: int) -> tuple[float, Gains]:
    ground = Ground(settings, domain, settings.base_file())
    picks, reported = settings.judges(settings.data, domain)
    return settings.noted("shared", domain, None, picks(ground.base), reported.gains(ground.base))


Tries = dict[str, list[list[Future[Any]]]]
"""Of each kind and plan, one a domain."""


def compare(settings: Settings, workers: ThreadPoolExecutor) -> None:
    """Train everything of one seed; the first plan of each kind in all domains comes first."""
    plans, domains = settings.plans, range(len(settings.data.names))
    submit = partial(workers.submit, on_a_stream, settings.device)
    base = submit(shared_base, settings)
    found: Tries = {
        "own": [[submit(own_model, settings, one, plan) for one in domains] for plan in plans.own]
    }
    base.result()
    found["shared"] = [[submit(shared_model, settings, one) for one in domains]]
    kinds = {"full": plans.full, **plans.adapters}
    for number in range(max(map(len, kinds.values()))):
        for kind, some in kinds.items():
            if number < len(some):
                plan = some[number]
                tries = [submit(adapted_model, settings, one, kind, plan) for one in domains]
                found.setdefault(kind, []).append(tries)
    for number in range(max(map(len, found.values()))):
        tell_picked(settings, {kind: some[: number + 1] for kind, some in found.items()})


def tell_picked(settings: Settings, found: Tries) -> None:
    """Note of each kind what the picking users like best, and how it stands to the others."""
    for domain, name in enumerate(settings.data.names):
        best = {
            kind: max((one[domain].result() for one in some), key=lambda one: one[0])[1]
            for kind, some in found.items()
        }
        for kind, gains in best.items():
            above = {other: compared(gains, best[other]) for other in best if other != kind}
            settings.note(
                kind="picked", of=kind, domain=name, value=float(gains.mean()), above=above
            )


def on_a_stream(device: str, task: Callable[..., Any], *arguments: Any) -> Any:
    """Let threads of one process work on a GPU side by side."""
    if device == "cpu":
        return task(*arguments)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = task(*arguments)
        stream.synchronize()
    return found


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


def newly_met(settings: Settings, domain: int) -> None:
    """Adapt a base that never met the domain to 100 of its users; the others judge."""
    shared_base(settings, domain)
    ground = Ground(settings, domain, settings.base_file(domain))
    data = settings.data
    others, reported = settings.judges(data, domain)
    before = reported.gains(ground.base)
    known = {"base": float(before.mean()), "others before": others(ground.base)}
    for number, plan in enumerate(settings.plans.fresh):
        for draw in range(NUM_DRAWS):
            few = few_users(data.sequences, data.own(domain), 1000 * settings.seed + draw)
            begin = time.perf_counter()
            model, share = ground.adapted(plan, few, None)
            seconds = time.perf_counter() - begin
            gains = reported.gains(model)
            settings.note(
                kind="new",
                domain=data.names[domain],
                draw=draw,
                number=number,
                plan=asdict(plan),
                **known,
                value=float(gains.mean()),
                above={"base": compared(gains, before)},
                others=others(model),
                share=share,
                seconds=seconds,
            )


def meet(settings: Settings, workers: ThreadPoolExecutor) -> None:
    """Take each domain in turn for a new one."""
    tasks = [
        workers.submit(on_a_stream, settings.device, newly_met, settings, domain)
        for domain in range(len(settings.data.names))
    ]
    for task in tasks:
        task.result()


PARTS = {"compared": compare, "new": meet}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", default="synthetic", help="'synthetic' or a folder of folders")
    parser.add_argument("--names", nargs="+", default=["beauty", "sports", "toys"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1, help="of each operation on a CPU")
    parser.add_argument("--users", type=int, help="of each real domain, drawn by the seed")
    parser.add_argument("--passes", type=float, default=1.0, help="share of the planned passes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workers", type=int, default=1, help="threads that train side by side")
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
            work=Path(scratch.name),
            raw=raw,
        )
        settings.note(kind="device", name=device)
        with ThreadPoolExecutor(chosen.workers) as workers:
            for part in chosen.parts:
                PARTS[part](settings, workers)
    lines = [
        json.loads(line)
        for path in chosen.from_raw or [raw]
        for line in path.read_text().splitlines()
    ]
    name = chosen.name or f"quality_{kind}" + ("_test" if chosen.split == "test" else "")
    rows, seeds = rows_of(lines)
    notes = protocol_of(plans, split=chosen.split, users=chosen.users, num_seeds=len(seeds))
    names = {one["name"] for one in lines if one["kind"] == "device"}
    write_results(name, rows, notes=notes, device=", ".join(sorted(names)))


if __name__ == "__main__":
    main()
