"""What one rank does in the tests: train small models, alone or with others.

    python -m torch.distributed.run --nproc-per-node 2 ranks_at_work.py FOLDER CASE...

Each case writes what the first rank ends with to FOLDER/<case>-<ranks>.safetensors; ``CASE@3`` is
stopped after 3 steps, and a case whose folder of checkpoints is there goes on.
"""

import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.fitting.sequence import fit_sequence
from recsys.fitting.spec import Refit, TrainingRun, run_training
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.config import SequenceConfig
from recsys.models.two_tower import TwoTower
from recsys.training.distributed.several import present_ranks, process_group
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.passes import (
    AdamWConfig,
    LoopConfig,
    ScheduleConfig,
    ShardingConfig,
    TrainingConfig,
)
from recsys.training.progress import SilentProgress
from recsys.training.ranker_fit import ranker_loss
from tests.recsys.training.test_ranker_shapes import (
    CATALOGUE,
    CONFIG,
    CPU,
    EVERYONE,
    INPUTS,
    TRAINING,
    examples,
)

NUM_ITEMS, NUM_USERS, DIM, BATCH = 97, 60, 16, 24
CASES = {
    "replicated": ("dense", math.inf),
    "adagrad": ("rowwise_adagrad", math.inf),
    "clipped": ("adam", 0.002),
}
"""Rule of the tables and norm of a row's gradient."""
OTHERS = ("sequence", "ranker")
"""Further models, of which every rank holds all weights; each trains the whole ranker."""
NUM_STEPS = 6


def world() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Histories of 5 items, labels and users of 240 examples."""
    generator = torch.Generator().manual_seed(3)
    histories = torch.randint(1, NUM_ITEMS, (240, 5), generator=generator)
    labels = torch.randint(1, NUM_ITEMS, (240,), generator=generator)
    users = torch.randint(1, NUM_USERS, (240,), generator=generator)
    return histories, labels, users


def model() -> TwoTower:
    torch.manual_seed(0)
    config = TwoTowerConfig(
        embedding_dim=DIM,
        max_history=5,
        hidden_dim=32,
        dropout=0.0,
        id_dropout=0.0,
        num_uniform_negatives=8,
        label_smoothing=0.1,
        backend="torch",
    )
    sizes = FeatureSizes(num_item_rows=NUM_ITEMS, user_features={"id": NUM_USERS})
    _, labels, _ = world()
    counts = torch.bincount(labels, minlength=NUM_ITEMS).clamp(min=1)
    return TwoTower(config, sizes, ItemCatalogue.empty(NUM_ITEMS), counts)


class StoppedError(Exception):
    """A training was stopped by the test."""


def run(case: str, folder: Path | None, stop_at: int | None = None) -> dict[str, torch.Tensor]:
    """Train; without a process group alone."""
    if case in OTHERS:
        return fitted(case, folder)
    tables, max_row_norm = CASES[case]
    shard_from = 10**9 if case == "replicated" else 0
    ranks = present_ranks(ShardingConfig(shard_from=shard_from))
    trained, (histories, labels, users) = model(), world()
    optimizer = AdamWConfig(tables=tables, max_row_norm=max_row_norm)
    ranks.shard(trained, optimizer)
    losses = []

    def loss_at(step: int) -> torch.Tensor:
        if step == stop_at:
            raise StoppedError
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % len(labels)
        part = torch.from_numpy(ranks.part(batch.numpy()))
        offsets = torch.arange(0, 5 * len(part) + 1, 5)
        queries = JaggedBatch(
            {
                "history": Jagged(histories[part].flatten(), offsets),
                "user.id": Jagged.one_each(users[part]),
            }
        )
        # Draws that the same step repeats, on any number of ranks.
        torch.manual_seed(step)
        loss = trained.loss(queries, labels[part], SameDraws(ranks.share(step, 0), step))
        losses.append(float(ranks.mean(loss.detach())))
        return loss

    train(
        trained,
        loss_at,
        adamw(trained, optimizer),
        LoopConfig(
            num_steps=NUM_STEPS,
            schedule=ScheduleConfig(learning_rate=0.01, decay="constant"),
            checkpoint_every=3,
            checkpoint_seconds=None,
        ),
        progress=SilentProgress(),
        checkpoint_dir=folder,
        ranks=ranks,
    )
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    return state | {"losses": torch.tensor(losses)}


class Losses:
    """Keeps the losses that a training logs."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def log(self, step: int, **values: float) -> None:
        self.found += [values["loss"]] if "loss" in values else []


def fitted(case: str, folder: Path | None) -> dict[str, torch.Tensor]:
    """Train as the stages do, without dropout, which each rank would draw for itself."""
    run = TrainingRun(
        seed=0, checkpoint_dir=folder, curve=(losses := Losses()), ranks=present_ranks()
    )
    if case == "sequence":
        # 21 windows of 2 to 9 events: parts of 11 and 10 windows, with other numbers of labels.
        offsets = np.concatenate([[0], np.cumsum(2 + np.arange(42) % 8)])
        rows = np.random.default_rng(1).integers(1, NUM_ITEMS, int(offsets[-1]))
        ends = {"train_end": offsets[1:], "validation_end": offsets[1:]}
        inputs = ModelInputs(
            sequences=Sequences(item_rows=rows, offsets=offsets, **ends),
            catalogue=ItemCatalogue.empty(NUM_ITEMS),
            sizes=FeatureSizes(num_item_rows=NUM_ITEMS),
        )
        config = SequenceConfig(
            embedding_dim=DIM, hidden_dim=8, dropout=0.0, id_dropout=0.0, backend="torch"
        )
        training = TrainingConfig(batch_size=21, max_epochs=NUM_STEPS / 2)
        stop = Refit(best_step=NUM_STEPS, num_examples=42)
        trained = fit_sequence(inputs, config, training, run, stop).model
    else:
        run = replace(run, ranks=run.ranks.copies())
        torch.manual_seed(0)
        trained = Ranker(CONFIG, INPUTS, CATALOGUE, torch.ones(INPUTS.num_item_rows))
        loss = ranker_loss(trained, examples(), EVERYONE, TRAINING, 0, CPU)
        run_training(trained, loss, TRAINING, TRAINING.for_steps(NUM_STEPS, 1), run, None)
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    return state | {"losses": torch.tensor(losses.found)}


class SameDraws:
    """Another share with draws that depend on the step alone, in one process as well."""

    def __init__(self, share, step: int) -> None:
        self._share, self._step = share, step
        self.all_labels, self.weight = share.all_labels, share.weight

    def draws(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(self._step)


def main() -> None:
    folder, cases = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    with process_group(torch.device("cpu"), 60):
        size = int(os.environ["WORLD_SIZE"])
        for one in cases:
            case, _, stop_at = one.partition("@")
            try:
                state = run(case, folder / f"{case}-checkpoints", int(stop_at) if stop_at else None)
            except StoppedError:
                continue
            for value in state.values():
                # What comes after a training reads the model on every rank.
                of_the_first = value.clone()
                dist.broadcast(of_the_first, src=0)
                assert of_the_first.equal(value)
            if os.environ["RANK"] == "0":
                save_file(state, folder / f"{case}-{size}.safetensors")
                shutil.rmtree(folder / f"{case}-checkpoints")
            dist.barrier()


if __name__ == "__main__":
    main()
