"""Measure what long histories are worth in a world with planted interests that return.

Models train on every event of some users and rank all items for the last event of others, whom they
never met, so that nothing of a user can lie in the weights: N@10 of long histories, whose answer
lies ``--gap`` events back or more, and of short ones. Seeds differ in world, model and batches.

    python -m tests.benchmarks.sequence.benchmark_long_histories --model sparse --seed 0
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.windows import BatchOrder
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.optim import AdamWConfig, adamw
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.testing.long_worlds import LongWorld, LongWorldConfig, long_world

PRESENT_LENGTH = 200
"""Events that the present models read."""


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    kinds = ["attention", "hstu", "sparse"]
    parser.add_argument("--model", choices=kinds, default="sparse")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--users", type=int, default=400, help="long ones, and as many short ones")
    parser.add_argument("--events", type=int, default=4_000, help="of a long history")
    parser.add_argument("--gap", type=int, default=1_000)
    parser.add_argument("--small", action="store_true", help="30 interests of 12, for a CPU")
    parser.add_argument("--length", type=int, default=None, help="events read; None is by model")
    parser.add_argument("--no-places", action="store_true", help="no embeddings of places")
    parser.add_argument("--positions", type=int, default=32_000, help="of a step")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seconds", type=float, default=150.0, help="of training")
    parser.add_argument("--steps", type=int, default=20_000, help="at most")
    parser.add_argument("--out", type=Path, default=None, help="appends a line of JSON")
    parser.add_argument("--save", type=Path, help="folder of the trained model")
    parser.add_argument("--report", type=Path, help="of such lines, in place of a run")
    parser.add_argument("--notes", default="", help="below the report's table")
    return parser.parse_args()


def config_of(options: argparse.Namespace) -> SequenceConfig:
    long = options.model == "sparse"
    return SequenceConfig(
        embedding_dim=options.dim,
        block=options.model,
        max_length=options.length or (options.events + 100 if long else PRESENT_LENGTH),
        num_blocks=options.blocks,
        num_heads=2,
        absolute_positions=not (long or options.no_places),
        dropout=0.1,
        id_dropout=0.0,
        label_smoothing=0.0,
        leave_out_history=False,
        backend="torch",
    )


def windows_of(world: LongWorld, length: int) -> list[tuple[int, int]]:
    """Cut every user's events, from the latest backwards."""
    found = []
    for first, end in zip(world.offsets[:-1], world.offsets[1:], strict=True):
        last = int(end)
        while last - first >= 2:
            found.append((max(int(first), last - length - 1), last))
            last -= length
    return found


def batch_of(world: LongWorld, spans: list[tuple[int, int]]) -> JaggedBatch:
    rows = np.concatenate([world.rows[first:end] for first, end in spans])
    offsets = np.cumsum([0, *(end - first for first, end in spans)])
    return JaggedBatch({"history": Jagged(torch.from_numpy(rows), torch.from_numpy(offsets))})


@torch.no_grad()
def ndcg(model: SequenceModel, world: LongWorld, users: range, device: str) -> list[float]:
    """N@10 of each user's last event."""
    gains = []
    for first in range(users.start, users.stop, 16):
        some = range(first, min(first + 16, users.stop))
        spans = [(int(world.offsets[u]), int(world.offsets[u + 1]) - 1) for u in some]
        scores = model.score(batch_of(world, spans).to(device))
        truth = torch.tensor([int(world.rows[end]) for _, end in spans], device=device)
        own = scores.gather(1, truth[:, None])
        rank = (scores[:, 1:] > own).sum(1)  # row 0 is padding
        gain = 1 / torch.log2(rank.double() + 2)
        gains += torch.where(rank < 10, gain, 0).tolist()
    return gains


def trained(
    options: argparse.Namespace, world: LongWorld, num_rows: int
) -> tuple[SequenceModel, int]:
    """Train for the given time, the learning rate falling linearly over it."""
    torch.manual_seed(options.seed)
    model = SequenceModel(
        config_of(options),
        FeatureSizes(num_item_rows=num_rows, content_dim=0),
        ItemCatalogue.empty(num_rows),
        torch.ones(num_rows, dtype=torch.int64),
    ).to(options.device)
    windows = windows_of(world, model.config.max_length)
    mean = sum(end - first for first, end in windows) / len(windows)
    order = BatchOrder(
        len(windows), min(len(windows), max(1, round(options.positions / mean))), options.seed
    )
    optimizer = adamw(model, AdamWConfig(tables="dense"))
    begin, step = time.perf_counter(), 0
    while (passed := (time.perf_counter() - begin) / options.seconds) < 1 and step < options.steps:
        passed = max(passed, step / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 100) * (1 - passed)
        batch = batch_of(world, [windows[at] for at in order.indices(step)]).to(options.device)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            loss = model.loss(model.labelled(batch))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            seconds = time.perf_counter() - begin
            print(
                f"{options.model} step {step}, {seconds:.0f} s, loss {loss.item():.4f}", flush=True
            )
    return model.eval(), step


def report(lines: Path, notes: str) -> None:
    """Write the results of finished runs as a table."""
    rows = []
    for line in lines.read_text().splitlines():
        run = json.loads(line)
        name = (
            f"{run['model']}, {run['max_length']} events, {run['steps']} steps, seed {run['seed']}"
        )
        for users in ("long", "short"):
            rows.append(Row(name=f"{name}: {users} N@10", value=run[f"{users} N@10"]))
            rows.append(Row(name=f"{name}: {users} standard error", value=run[f"{users} error"]))
    write_results("long_histories", rows, notes=notes)


def main() -> None:
    options = parsed_arguments()
    if options.report:
        report(options.report, options.notes)
        return
    settings = LongWorldConfig(
        seed=options.seed,
        num_long=options.users,
        num_short=options.users,
        long_events=options.events,
        min_gap=options.gap,
    )
    if options.small:
        settings = replace(
            settings,
            num_interests=30,
            items_per_interest=12,
            num_background=96,
            num_topics=12,
            own_interests=20,
            return_share=0.1,
        )
    world = long_world(settings)
    others = long_world(replace(settings, seed=settings.seed + 1_000))
    model, steps = trained(options, world, settings.num_item_rows)
    found: dict[str, object] = {
        "model": options.model + " without places" * options.no_places,
        "seed": options.seed,
        "max_length": model.config.max_length,
        "steps": steps,
    }
    for name, users in (
        ("long", range(options.users)),
        ("short", range(options.users, 2 * options.users)),
    ):
        gains = np.array(ndcg(model, others, users, options.device))
        found[f"{name} N@10"] = round(float(gains.mean()), 4)
        found[f"{name} error"] = round(float(gains.std() / len(gains) ** 0.5), 4)
    print(json.dumps(found), flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
    if options.save:
        model.cpu().save(options.save)


if __name__ == "__main__":
    main()
