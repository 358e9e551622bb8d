"""A ladder of widths, depths and shares of the data: what a sequence model gains by each.

    python -m tests.benchmarks.reproduction.ladder FOLDER --out RUNS --workers 12

Each rung trains the recipe's sequence model with its own width and depth on the events of a share
of the users, drawn once by the seed, and is measured on validation: the cross entropy over the
full catalogue in nats, at the model's own temperature, and the ranking. The test split is not
looked at. Needs torch, numpy and safetensors alone.

Axes: U users, B queries of a batch, N item rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from recsys.data.dataset import Sequences
from recsys.fitting.queries import rank_queries
from recsys.fitting.spec import device_named
from recsys.models.sequence.model import SequenceModel
from tests.benchmarks.recipes.fit import Experiment
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.run import device_text, metrics_of, read_result, write_json
from tests.benchmarks.reproduction.fitters import sequence_source

WIDTHS = (32, 64, 128, 256)
DEPTHS = (1, 2, 4)
SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One training of the ladder."""

    width: int
    depth: int
    share: float
    """Of the users whose events are trained on."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.depth < 1 or not 0 < self.share <= 1:
            raise ValueError(
                f"width and depth must be >= 1 and share in (0, 1], got {self.width}, "
                f"{self.depth} and {self.share}"
            )

    @property
    def name(self) -> str:
        return f"w{self.width}-d{self.depth}-s{self.share:g}-{self.seed}"


def rungs(widths: Sequence[int], depths: Sequence[int], shares: Sequence[float]) -> list[Rung]:
    """List every combination, the longest trainings first."""
    every = [
        Rung(width=width, depth=depth, share=share)
        for width, depth, share in itertools.product(widths, depths, shares)
    ]
    return sorted(every, key=lambda rung: -rung.share * rung.width * (1 + rung.depth))


def of_some_users(sequences: Sequences, share: float, seed: int) -> Sequences:
    """Train on a share of the users alone; a larger share holds every user of a smaller one."""
    starts, ends = np.asarray(sequences.offsets[:-1]), np.asarray(sequences.train_end)
    drawn = np.random.default_rng([seed, len(starts)]).random(len(starts))
    chosen = np.argsort(drawn, kind="stable")[: max(1, round(share * len(starts)))]
    train_end = starts.copy()
    train_end[chosen] = ends[chosen]
    return replace(sequences, train_end=train_end)


def run_rung(prepared: Prepared, folder: Path, rung: Rung, device: torch.device) -> dict[str, Any]:
    """Train and measure one rung, of one member, or read what an earlier call left."""
    path = folder / f"{rung.name}.json"
    done = read_result(path, prepared)
    if done is not None:
        return done
    recipe = prepared.recipe
    member_dim = recipe.sequence.block_config().dim
    sized = replace(
        recipe.sequence,
        num_members=1,
        embedding_dim=rung.width,
        hidden_dim=max(1, recipe.sequence.hidden_dim * rung.width // member_dim),
        num_blocks=rung.depth,
    )
    own = replace(prepared, recipe=replace(recipe, sequence=sized))
    inputs = own.inputs(next(iter(prepared.orders)))
    experiment = Experiment(
        prepared=own,
        inputs=inputs,
        seed=rung.seed,
        device=device,
        training=of_some_users(inputs.sequences, rung.share, rung.seed),
    )
    begin = time.perf_counter()
    fitted = sequence_source(experiment)
    seconds = time.perf_counter() - begin
    model = cast("SequenceModel", fitted.model)
    queries = experiment.queries("validation")
    ranked = rank_queries(fitted.source, queries, device)
    result = {
        "data_set": prepared.name,
        "data_digest": prepared.data_digest,
        "recipe": recipe.digest(),
        **asdict(rung),
        "num_weights": num_encoder_weights(model),
        "num_all_weights": sum(weight.numel() for weight in model.parameters()),
        "num_events": int(experiment.item_counts().sum()),
        "loss": cross_entropy(model, experiment),
        **metrics_of(ranked.ranks, queries.targets()),
        "training": None if fitted.training is None else asdict(fitted.training),
        "seconds": round(seconds, 1),
        "device": device_text(device),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return result


def num_encoder_weights(model: SequenceModel) -> int:
    """Count what reads histories: all weights but the tables, whose rows the catalogue decides."""
    encoder = sum(weight.numel() for weight in model.encoder.parameters())
    content = model.item_tower.content
    return encoder + (0 if content is None else content.weight.numel())


@torch.no_grad()
def cross_entropy(model: SequenceModel, experiment: Experiment) -> float:
    """Mean -log of the targets' softmax over all that a query may be shown, in nats."""
    queries = experiment.queries("validation")
    every, total, number = queries.targets(), 0.0, 0
    for batch in queries.batches(experiment.device):
        logits = model.score(batch.queries).float() / model.config.temperature  # [B, N]
        targets = every.take(batch.rows).to(experiment.device)
        places = (targets.segments(), targets.values)
        # A target that the user has seen cannot be listed, so it does not count.
        shown = batch.allowed[places]
        logits = logits.masked_fill(~batch.allowed, -torch.inf).log_softmax(1)
        own: Tensor = logits[places][shown]
        total, number = total - float(own.sum()), number + len(own)
    return total / max(1, number)


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tests.benchmarks.reproduction.ladder", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="arrays, from --prepare of a card")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rungs' results")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--depths", nargs="+", type=int, default=list(DEPTHS))
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1, help="rungs at a time")
    parser.add_argument("--part", type=int, help="of the workers, for this process")
    return parser.parse_args(arguments)


def own_share(every: Sequence[Rung], worker: int, num_workers: int) -> Iterator[Rung]:
    """Deal the rungs out, so that each worker has long and short ones."""
    return itertools.islice(every, worker, None, num_workers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rungs that are not there yet."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed_arguments(given)
    every = rungs(options.widths, options.depths, options.shares)
    if options.workers > 1 and options.part is None:
        command = [sys.executable, "-m", "tests.benchmarks.reproduction.ladder", *given, "--part"]
        workers = [subprocess.Popen([*command, str(part)]) for part in range(options.workers)]
        return max(abs(worker.wait()) for worker in workers)
    prepared = Prepared.load(options.folder)
    device = device_named(options.device)
    if options.workers > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // options.workers))
    for rung in own_share(every, options.part or 0, options.workers):
        result = run_rung(prepared, options.out, rung, device)
        line = {name: result[name] for name in ("num_events", "loss", "ndcg@10", "seconds")}
        sys.stdout.write(f"{rung.name} {json.dumps(line)}\n")
        sys.stdout.flush()
        assert math.isfinite(result["loss"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
