"""Compare a domain's adapter with full fine-tuning, one shared model and a model of its own.

On a synthetic world of four domains with conflicting tastes, or on prepared arrays of real domains
joined into one item space. For each domain and seed, N@10 among the domain's items, history left
out, of: the shared model, trained on all domains; a model of the domain's events alone; the shared
model fine-tuned whole; its adapters. All are picked by half of the validation users and reported on
the other half; the test split is not looked at. A last part takes one domain out of the base and
adapts to 100 users of it.

    PYTHONPATH=$PWD python tests/benchmarks/benchmark_lora_quality.py --data synthetic
    PYTHONPATH=$PWD python tests/benchmarks/benchmark_lora_quality.py --data FOLDER --device cuda

FOLDER holds <domain>.npz (rows, offs), <domain>_content.npy and <domain>_cats.npz of each domain.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from lora_domains import Data, Judge, joined, only, synthetic, without
from numpy.typing import NDArray
from results_file import Row, device_name, write_results
from torch import Tensor, nn

from recsys.data.dataset import Sequences
from recsys.data.domains import domain_positions, domain_window_batch, domain_windows
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows, window_batch
from recsys.layers.lora import LoraAdapter, LoraConfig
from recsys.models.item_tower import TwoTowerInputs
from recsys.models.sequence import SequenceConfig, SequenceModel
from recsys.training.loop import TrainConfig, train
from recsys.training.optim import AdamWConfig, ScheduleConfig, adamw
from recsys.training.progress import SilentTracker

METRIC = "ndcg@10"
ENCODER = ("encoder.*",)
ENCODER_AND_CONTENT = ("encoder.*", "item_tower.content")


class Quiet:
    def show(self, step: int, num_steps: int, **values: float) -> None:
        pass


@dataclass(frozen=True)
class Plan:
    """How one model is trained."""

    epochs: float
    learning_rate: float
    batch_size: int


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
            precision="float32",
        ),
        evaluate=lambda _: {METRIC: judge(model)},
        tracker=SilentTracker(),
        progress=Quiet(),
    )


def built(data: Data, sequences: Sequences, config: SequenceConfig, seed: int, device: str):
    torch.manual_seed(seed)
    inputs = TwoTowerInputs(
        num_item_rows=len(data.domain_of_item),
        content_dim=data.catalogue.content.shape[1],
        num_categories=data.num_categories,
    )
    return SequenceModel(config, inputs, data.catalogue, data.counts(sequences)).to(device)


@dataclass(frozen=True)
class Settings:
    """What one process is told."""

    data: str
    device: str
    seed: int
    epochs: float
    adapted_epochs: float
    ranks: tuple[int, ...]
    threads: int
    users: int | None
    negatives: int | None
    batch_size: int
    quick: bool

    @cache  # noqa: B019 - one a process
    def load(self) -> Data:
        torch.set_num_threads(self.threads)
        if self.data == "synthetic":
            return synthetic(self.seed)
        return joined(Path(self.data), self.users, self.seed)

    def config(self) -> SequenceConfig:
        if self.data == "synthetic":
            return SequenceConfig(
                embedding_dim=64,
                hidden_dim=128,
                dropout=0.2,
                backend="torch",
                leave_out_history=False,
                label_smoothing=0.0,
            )
        return SequenceConfig(
            backend="torch", max_scores=1 << 28, num_uniform_negatives=self.negatives
        )


def mean_judge(judges: list[Judge]) -> Callable[[SequenceModel], float]:
    return lambda model: sum(judge(model) for judge in judges) / len(judges)


def shared_base(settings: Settings, left_out: int | None = None) -> dict[str, Tensor]:
    """Train the shared model, on all domains or all but one; return its weights on the CPU."""
    data = settings.load()
    sequences = data.sequences if left_out is None else without(data, left_out)
    domains = [one for one in range(len(data.names)) if one != left_out]
    model = built(data, sequences, settings.config(), settings.seed, settings.device)
    judges = [Judge(data, data.sequences, one, 0, settings.device) for one in domains]
    plan = Plan(settings.epochs, 2e-3, settings.batch_size)
    fit(model, model, sequences, None, plan, mean_judge(judges), settings.seed)
    return {name: value.cpu() for name, value in model.state_dict().items()}


def base_of(settings: Settings, data: Data, weights: dict[str, Tensor]) -> SequenceModel:
    model = built(data, data.sequences, settings.config(), settings.seed, settings.device)
    model.load_state_dict(weights)
    return model.eval()


def own_model(settings: Settings, domain: int) -> dict[str, float]:
    """Train on the domain's events alone, histories cut likewise."""
    data = settings.load()
    sequences = only(data, domain)
    model = built(data, sequences, settings.config(), settings.seed, settings.device)
    picked, told = (Judge(data, sequences, domain, half, settings.device) for half in (0, 1))
    plan = Plan(settings.epochs, 2e-3, settings.batch_size)
    fit(model, model, sequences, data.own(domain), plan, picked, settings.seed)
    return {"own": told(model)}


def adapted(settings: Settings, domain: int, weights: dict[str, Tensor]) -> dict[str, float]:
    """Fine-tune the shared model whole, and train its adapters, each by the better of two rates."""
    data = settings.load()
    own = data.own(domain)
    base = base_of(settings, data, weights)
    picked, told = (Judge(data, data.sequences, domain, half, settings.device) for half in (0, 1))
    found = {"shared": told(base), "users": float(told.num_users)}
    best = -1.0
    for rate in (1e-3,) if settings.quick else (3e-4, 1e-3):
        model = copy.deepcopy(base)
        plan = Plan(settings.adapted_epochs, rate, settings.batch_size)
        fit(model, model, data.sequences, own, plan, picked, settings.seed)
        if (value := picked(model)) > best:
            best, found["full"] = value, told(model)
    variants = {"lora": ENCODER_AND_CONTENT, "lora of the encoder": ENCODER}
    for name, targets in list(variants.items())[: 1 if settings.quick else None]:
        for rank in settings.ranks:
            best = -1.0
            for rate in (3e-3,) if settings.quick else (2e-3, 6e-3):
                model = copy.deepcopy(base)
                torch.manual_seed(settings.seed)
                adapter = LoraAdapter(model, LoraConfig(targets=targets, rank=rank)).attach()
                plan = Plan(settings.adapted_epochs, rate, settings.batch_size)
                fit(adapter, model, data.sequences, own, plan, picked, settings.seed)
                if (value := picked(model)) > best:
                    best, found[f"{name} r{rank}"] = value, told(model)
                    found[f"share {name} r{rank}"] = adapter.share
    return found


def new_domain(settings: Settings, domain: int, weights: dict[str, Tensor]) -> dict[str, float]:
    """Adapt a base that never met the domain to 100 of its users; the others judge."""
    data = settings.load()
    own = data.own(domain)
    whole = data.sequences
    inside = np.unique(whole.users_of(domain_positions(whole, "train", own)))
    chosen = np.random.default_rng(settings.seed).choice(inside, 100, replace=False)
    kept = np.isin(np.arange(whole.num_user_rows), chosen)
    starts = whole.offsets[:-1]
    few = replace(
        whole,
        train_end=np.where(kept, whole.train_end, starts),
        # Nobody else may pick the step either.
        validation_end=np.where(kept, whole.validation_end, starts),
    )
    base = base_of(settings, data, weights)
    picked = Judge(data, few, domain, 0, settings.device)
    told = Judge(data, whole, domain, 1, settings.device)
    model = copy.deepcopy(base)
    begin = time.perf_counter()
    config = LoraConfig(targets=ENCODER_AND_CONTENT, rank=settings.ranks[0])
    adapter = LoraAdapter(model, config).attach()
    fit(adapter, model, few, own, Plan(40, 1e-3, 32), picked, settings.seed)
    return {"base": told(base), "adapter": told(model), "seconds": time.perf_counter() - begin}


def run(settings: Settings, workers: int) -> dict[str, dict[str, float]]:
    """Train everything of one seed; processes side by side, base first."""
    data = settings.load()
    found: dict[str, dict[str, float]] = {name: {} for name in data.names}
    domains = range(len(data.names))
    last = len(data.names) - 1
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        base = pool.submit(shared_base, settings)
        partial = None if settings.quick else pool.submit(shared_base, settings, last)
        own = [pool.submit(own_model, settings, domain) for domain in domains]
        tuned = [pool.submit(adapted, settings, one, base.result()) for one in domains]
        fresh = partial and pool.submit(new_domain, settings, last, partial.result())
        for name, one, two in zip(data.names, own, tuned, strict=True):
            found[name] |= one.result() | two.result()
        if fresh:
            found["new domain"] = fresh.result()
    return found


def rows_of(seeds: list[dict[str, dict[str, float]]]) -> list[Row]:
    """Lay means over seeds out, by domain and over domains."""
    names = [name for name in seeds[0] if name != "new domain"]
    kinds = [kind for kind in seeds[0][names[0]] if not kind.startswith(("share ", "users"))]

    def mean(kind: str, domains: list[str]) -> float:
        return float(np.mean([seed[one][kind] for seed in seeds for one in domains]))

    rows = [
        Row(name=f"{name}: {kind}", value=mean(kind, [name]), unit=METRIC)
        for name in names
        for kind in kinds
    ]
    shared, own, full = (mean(kind, names) for kind in ("shared", "own", "full"))
    for kind in kinds:
        value = mean(kind, names)
        rows.append(Row(name=f"mean: {kind}", value=value, unit=METRIC))
        if not kind.startswith("lora"):
            continue
        gain = (value - shared) / (full - shared) if full > shared else float("nan")
        rows.append(
            Row(
                name=f"{kind}: share of full fine-tuning's gain",
                value=gain,
                unit="",
                goal=">= 0.9",
                met=gain >= 0.9,
            )
        )
        rows.append(
            Row(
                name=f"{kind}: above shared and own",
                value=value - max(shared, own),
                unit=METRIC,
                goal="> 0",
                met=value > max(shared, own),
            )
        )
        share = mean(f"share {kind}", names)
        rows.append(
            Row(
                name=f"{kind}: parameters, of the base's",
                value=share,
                unit="",
                goal="<= 0.05",
                met=share <= 0.05,
            )
        )
    if "new domain" not in seeds[0]:
        return rows
    for kind, unit in (("base", METRIC), ("adapter", METRIC), ("seconds", "s")):
        value = float(np.mean([seed["new domain"][kind] for seed in seeds]))
        rows.append(Row(name=f"new domain, 100 users: {kind}", value=value, unit=unit))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="synthetic", help="'synthetic' or a folder of arrays")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=12.0, help="of shared and own models")
    parser.add_argument("--adapted-epochs", type=float, default=6.0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[5])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--users", type=int, help="of each real domain, drawn by the seed")
    parser.add_argument("--negatives", type=int, help="uniform draws a step; default every item")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument(
        "--quick", action="store_true", help="one learning rate, one variant, no new domain"
    )
    parser.add_argument("--name", help="of the results; by default from data and device")
    parser.add_argument("--raw", type=Path, help="write every number there as JSON too")
    chosen = parser.parse_args()
    begin = time.perf_counter()
    seeds = []
    for seed in range(chosen.seeds):
        settings = Settings(
            chosen.data, chosen.device, seed, chosen.epochs, chosen.adapted_epochs,
            tuple(chosen.ranks), chosen.threads, chosen.users, chosen.negatives,
            chosen.batch_size, chosen.quick,
        )  # fmt: skip
        seeds.append(run(settings, chosen.workers))
        print(json.dumps(seeds[-1]), flush=True)
        if chosen.raw:
            chosen.raw.write_text(json.dumps(seeds, indent=1))
    kind = "synthetic" if chosen.data == "synthetic" else "real"
    notes = (
        f"{chosen.seeds} seed(s), {chosen.epochs:g} passes for shared and own models, "
        f"{chosen.adapted_epochs:g} for fine-tuning and adapters, by "
        f"{'one learning rate each' if chosen.quick else 'the better of two learning rates'}; "
        f"{chosen.users or 'all'} users of each domain, {chosen.negatives or 'all items'} "
        f"as negatives; {time.perf_counter() - begin:.0f} s. Picked on half of the validation "
        "users, told of the other half, ranked among the domain's items."
    )
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else device_name()
    write_results(chosen.name or f"lora_quality_{kind}", rows_of(seeds), notes=notes, device=device)


if __name__ == "__main__":
    main()
