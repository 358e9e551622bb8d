"""Runs training jobs in processes that a test may kill.

Reads one JSON job per line, forks a child for it, and answers with how the child ended. Forking
from one process that has imported torch (and computed nothing) saves two seconds a job.
"""

import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.windows import BatchOrder
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.training import checkpoint as checkpoint_module
from recsys.training.checkpoint import Checkpoint, save_checkpoint
from recsys.training.loop import train
from recsys.training.optim import AdamWConfig, LoopConfig, ScheduleConfig, adamw

NUM_STEPS = 40


class SmallTower(nn.Module):
    """A two-tower model in little: pooled history against item rows, dropout, in-batch softmax."""

    def __init__(self):
        super().__init__()
        tables = [TableConfig(name="item", num_rows=301, embedding_dim=16, features=("history",))]
        self.bags = EmbeddingBags(tables, "torch")
        self.query = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16))

    def loss(self, history, labels):
        queries = functional.normalize(self.query(self.bags(history)["history"]), dim=1)
        items = functional.normalize(self.bags.lookup("item", labels), dim=1)
        return functional.cross_entropy(queries @ items.T / 0.1, torch.arange(len(labels)))


class Chain:
    """Sequences in which item i is followed by item i + 7, as batches by step."""

    def __init__(self):
        self.order = BatchOrder(num_samples=600, batch_size=32, seed=5)

    def batch_at(self, step):
        start = torch.from_numpy(self.order.indices(step) % 300)
        history = (start[:, None] + 7 * torch.arange(3)) % 300 + 1
        offsets = torch.arange(0, 3 * len(start) + 1, 3)
        batch = JaggedBatch({"history": Jagged(history.reshape(-1), offsets)})
        return batch, (start + 21) % 300 + 1

    def evaluate(self, model):
        # Draws on purpose: validation must not break the resume of the random state either.
        noise = torch.rand(1).item() * 1e-3
        losses = [model.loss(*self.batch_at(step)).item() for step in range(3)]
        return {"negative_loss": noise - float(np.mean(losses))}


def run_training(folder, job):
    torch.manual_seed(11)
    model, chain = SmallTower(), Chain()
    optimizer = adamw(model, AdamWConfig())
    config = LoopConfig(
        num_steps=NUM_STEPS,
        schedule=ScheduleConfig(learning_rate=0.01, warmup_steps=5),
        eval_every=6,
        metric="negative_loss",
        patience=None,
        checkpoint_every=job.get("checkpoint_every", 3),
    )

    def loss_at(step):
        if step == job.get("kill_at_step"):
            os.kill(os.getpid(), signal.SIGKILL)
        return model.loss(*chain.batch_at(step))

    return train(model, loss_at, optimizer, config, evaluate=chain.evaluate, checkpoint_dir=folder)


def small_checkpoint(step):
    values = torch.full((1000,), float(step))
    return Checkpoint(
        step=step,
        tensors={"model": {"weight": values}, "best": {"weight": values}},
        state={"step": step},
    )


class CrashPoints:
    """Numbers every moment before, during and after a call that touches the disk."""

    def __init__(self, kill_at):
        self.kill_at = kill_at
        self.count = 0
        os.fsync = self.around(os.fsync)
        os.rename = self.around(os.rename)
        shutil.rmtree = self.around(shutil.rmtree)
        checkpoint_module.save_file = self.around(self.in_two_halves(checkpoint_module.save_file))

    def passing(self):
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def around(self, function):
        def wrapped(*args, **kwargs):
            self.passing()
            result = function(*args, **kwargs)
            self.passing()
            return result

        return wrapped

    def in_two_halves(self, save_file):
        def wrapped(tensors, path):
            save_file(tensors, path)
            whole = Path(path).read_bytes()
            os.truncate(path, len(whole) // 2)
            self.passing()
            Path(path).write_bytes(whole)

        return wrapped


def save_third_checkpoint(folder, job):
    """With two saved and room for two, the third also deletes the first."""
    for step in (1, 2):
        save_checkpoint(folder, small_checkpoint(step))
    points = CrashPoints(job["kill_at_point"])
    save_checkpoint(folder, small_checkpoint(3))
    (folder / "points").write_text(str(points.count))


def run_job(job):
    folder = Path(job["folder"])
    sys.stderr = (folder.parent / f"{folder.name}.stderr").open("w")
    if "file_size_limit" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_size_limit"], resource.RLIM_INFINITY))
    if "kill_at_point" in job:
        save_third_checkpoint(folder, job)
    else:
        run_training(folder, job)


def main():
    torch.set_num_threads(1)
    # Brings in what torch imports at the first optimizer, so that no child pays for it.
    adamw(SmallTower(), AdamWConfig())
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_job(job)
                code = 0
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}")
                sys.stderr.flush()
            finally:
                os._exit(code)
        if "kill_after_s" in job:
            time.sleep(job["kill_after_s"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
