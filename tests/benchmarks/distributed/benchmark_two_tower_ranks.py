"""Training over ranks: steps, loss, memory and checkpoint of a two-tower of 100M rows.

Every case goes the whole path of a user's training (``recsys.training.loop.train`` with
``recsys.training.distributed``) over a stream of labels, with the settings of ``shop.toml`` and the
same global batch on one GPU and on several.

    python -m tests.benchmarks.distributed.benchmark_two_tower_ranks --ranks 1 2 2-no-peers 2-large
    python -m tests.benchmarks.distributed.benchmark_two_tower_ranks --tiny   # on a CPU, by gloo
    python -m tests.benchmarks.distributed.benchmark_two_tower_ranks --page --out FOLDER

Launches of one GPU run at the same time if there are two.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.data.batch import StepShare
from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.embedding.tables import filled_later
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.two_tower import PreparedBatch, TwoTower
from recsys.training.captured import AheadLoss
from recsys.training.distributed.several import RankPart, local_device, present_ranks, process_group
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, LoopConfig, ScheduleConfig, ShardingConfig
from recsys.training.ranks import Ranks
from tests.benchmarks.distributed.world import USER, World
from tests.benchmarks.harness import Row, command_line, write_results

SHOP = tomllib.loads((Path(__file__).parent / "shop.toml").read_text())
BLOCK = 1 << 20
"""Rows that are drawn at a time, from a seed of their own, whoever holds them."""
EVERY, WARMUP = 10, 2
"""Steps between two readings of the clock, and readings that do not count."""
GIB = 1 << 30
HOW = {"": "", "torchrun": ", by torchrun", "no-peers": ", without peer access", "large": ""}
"""Ways to launch ranks: the number alone, in a process group of one, through the host's memory;
``large`` trains a table of more bytes than a GPU has."""
OF_HOW = (16_384, 65_536)
"""Batches of the launches other than the plain ones."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training."""

    world: World
    phases: tuple[tuple[int, int], ...]
    """Labels of a step over all ranks, and steps; one after the other on the same weights."""
    save: bool = False
    tables: str = SHOP["two_tower_training"]["optimizer"]["tables"]
    """Rule by which rows move."""

    def name(self, batch: int) -> str:
        """Name a phase in the results."""
        rows = (self.world.num_users + self.world.num_items) / 1e6
        return f"{rows:.3g}M rows, batch {batch}{', saved' * self.save}"


@dataclass
class Stamps:
    """Loss of each reading, and when it was known."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def log(self, step: int, **values: float) -> None:
        if "loss" in values:
            self.losses.append(values["loss"])
            self.seconds.append(time.perf_counter())


class SameDraws(StepShare):
    """The whole batch with the draws of several ranks."""

    def __init__(self, step: int) -> None:
        self._step = step

    def draws(self, device: torch.device) -> torch.Generator | None:
        return RankPart(self._step, 0).draws(device)


def model_of(case: Case) -> TwoTower:
    """Build the towers on the host, their tables undrawn."""
    name = USER.partition(".")[2]
    sizes = FeatureSizes(
        num_item_rows=case.world.num_items + 1, user_features={name: case.world.num_users + 1}
    )
    torch.manual_seed(0)
    with filled_later():
        model = TwoTower(
            TwoTowerConfig(**SHOP["two_tower"]), sizes, ItemCatalogue.empty(sizes.num_item_rows)
        )
    model.item_tower.item_counts = case.world.item_counts(torch.device("cpu"))
    return model


@torch.no_grad()
def draw_rows(model: TwoTower, ranks: Ranks) -> None:
    """Fill tables with rows that do not depend on who holds them: rank k of n has row k, k + n."""
    layers = {0.3: model.item_tower.tables, 1.0: model.query_tower.features}
    for number, (scale, layer) in enumerate(layers.items()):
        assert isinstance(layer, EmbeddingBags)
        for table in layer.tables.values():
            own = layer.weight(table.name).data
            step = ranks.size if layer.is_sharded else 1
            first = ranks.rank if layer.is_sharded else 0
            for begin in range(0, table.num_rows, BLOCK):
                generator = torch.Generator(own.device).manual_seed(1_000_003 * number + begin)
                rows = torch.randn(BLOCK, own.shape[1], generator=generator, device=own.device)
                rows = rows[: table.num_rows - begin] * (scale / own.shape[1] ** 0.5)
                rows = rows[(first - begin) % step :: step]
                place = -(-(begin - first) // step)
                own[place : place + len(rows)] = rows
            if first == 0:
                own[0] = 0


def trained(case: Case, ranks: Ranks, device: torch.device, folder: Path) -> list[dict[str, Any]]:
    """Train one case on this rank and say how each phase went."""
    optimizer_settings = SHOP["two_tower_training"]["optimizer"] | {"tables": case.tables}
    config = AdamWConfig(**optimizer_settings)
    begun, on_gpu = time.perf_counter(), device.type == "cuda"
    model = model_of(case)
    ranks.shard(model, config, device)
    model = model.to(device)
    optimizer = adamw(model, config)
    draw_rows(model, ranks)
    if on_gpu:
        torch.cuda.empty_cache()
    ready, found = time.perf_counter() - begun, []
    tables = torch.cuda.memory_allocated() if on_gpu else 0
    for batch, steps in case.phases:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        stamps = steps_of(case, (batch, steps), model, optimizer, ranks, device, folder)
        times = torch.tensor(stamps.seconds, dtype=torch.float64).diff()[WARMUP:] / EVERY
        found.append(
            {
                "case": case.name(batch),
                "ranks": ranks.size,
                "batch": batch,
                "ms": 1e3 * float(times.median()),
                "slowest_ms": 1e3 * float(times.max()),
                "losses": [round(one, 5) for one in stamps.losses],
                "ready_seconds": ready,
                "tables_gib": tables / GIB,
                "peak_gib": torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0,
                "probe": probe(model, case) if case.save else [],
            }
        )
        if ranks.rank == 0:
            print({k: v for k, v in found[-1].items() if k not in ("losses", "probe")}, flush=True)
    return found


def steps_of(
    case: Case,
    phase: tuple[int, int],
    model: TwoTower,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    device: torch.device,
    folder: Path,
) -> Stamps:
    """Train one phase by the loop that users' trainings go through."""
    (batch, steps), stamps, size = phase, Stamps(), ranks.size
    part = (batch * ranks.rank // size, batch * (ranks.rank + 1) // size)

    def batch_at(step: int) -> PreparedBatch:
        if step == steps + 1 and not case.save:
            # What follows gathers whole tables, which only the case of the checkpoint is for.
            raise StopIteration
        queries, labels = case.world.batch(step, batch, part, device)
        share = ranks.share(step, 0) if size > 1 else SameDraws(step)
        return model.prepared(queries, labels, share, is_cut=True)

    def loss_at(step: int) -> Tensor:
        return model.loss_of(batch_at(step))

    is_ahead = size > 1 and device.type == "cuda"
    loss = AheadLoss(batch_at, model.loss_of, device) if is_ahead else loss_at

    settings = LoopConfig(
        num_steps=steps if case.save else steps + 2,
        schedule=ScheduleConfig(learning_rate=3e-3, warmup_steps=10, decay="constant"),
        log_every=EVERY,
        checkpoint_every=steps if case.save else None,
        checkpoint_seconds=None,
    )
    kept = folder if case.save else None
    with suppress(StopIteration):
        train(model, loss, optimizer, settings, tracker=stamps, checkpoint_dir=kept, ranks=ranks)
    return stamps


@torch.no_grad()
def probe(model: TwoTower, case: Case) -> list[float]:
    """Score some queries with some items by a whole model, on the host of the first rank."""
    if dist.is_initialized() and dist.get_rank():
        return []
    model = model.cpu().eval()
    queries, labels = case.world.batch(1_000_000, 64, (0, 64), torch.device("cpu"))
    history = queries["history"]
    inputs = model.item_inputs(history.values % model.inputs.num_item_rows)
    vectors = model.query_tower(queries, history, inputs)
    return [round(float(one), 6) for one in (vectors * model.item_inputs(labels)).sum(1)]


def cases(how: str = "", *, tiny: bool) -> list[Case]:
    """List the trainings of a way to launch."""
    if how == "large" and not tiny:
        world = World(num_users=400_000_000, num_items=20_000_000)
        return [Case(world=world, phases=((65536, 100),), tables="rowwise_adagrad")]
    small = World(num_users=200_000, num_items=100_000, num_tastes=100, num_events=1_000_000)
    if tiny:
        return [
            Case(world=small, phases=((512, 60),)),
            Case(world=small, phases=((512, 40),), save=True),
        ]
    large = World(num_users=80_000_000, num_items=20_000_000)
    saved = World(num_users=1_600_000, num_items=400_000)
    phases = ((8192, 100), (16384, 100), (32768, 100), (65536, 300))
    return [Case(world=large, phases=phases), Case(world=saved, phases=((16384, 60),), save=True)]


def work(args: argparse.Namespace) -> None:
    """Run every case on this rank; of one rank without a process group, as a run does."""
    size, how = divided(args.worker)
    device, several = local_device("cpu" if args.tiny else "cuda"), size > 1 or bool(how)
    torch.set_num_threads(1 if args.tiny else 8)
    with process_group(device, 120) if several else nullcontext():
        found: list[dict[str, Any]] = []
        for case in cases(how, tiny=args.tiny)[: 1 if how else None]:
            if how and not args.tiny:
                case = replace(case, phases=tuple(one for one in case.phases if one[0] in OF_HOW))
            ranks = present_ranks(ShardingConfig(shard_from=1))
            found += trained(case, ranks, device, Path(args.out) / f"checkpoint-{args.worker}")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if ranks.rank == 0:
                (Path(args.out) / f"ranks-{args.worker}.json").write_text(json.dumps(found))


def divided(launch: str) -> tuple[int, str]:
    """Split a launch such as ``2-no-peers`` into its ranks and how they are launched."""
    size, _, how = launch.partition("-")
    return int(size), how


def launched(launch: str, args: argparse.Namespace, out: Path, gpu: int | None = None) -> None:
    """Start ranks by torchrun, or one process."""
    (size, how), command = divided(launch), [sys.executable, "-m"]
    if size > 1 or how:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "-m"]
    assert __spec__ is not None
    command += [__spec__.name, "--out", str(out), "--worker", launch] + ["--tiny"] * args.tiny
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    environment |= {"NCCL_P2P_DISABLE": "1"} if how == "no-peers" else {}
    environment |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    subprocess.run(command, check=True, env=environment)


def launch_all(args: argparse.Namespace, out: Path) -> None:
    """Start the launches one after the other, those of one GPU side by side."""
    count = torch.cuda.device_count()
    single = [one for one in args.ranks if divided(one)[0] == 1] if count > 1 else []
    with ThreadPoolExecutor(max(1, count)) as pool:
        places = [place % count for place in range(len(single))]
        list(pool.map(lambda one, gpu: launched(one, args, out, gpu), single, places))
    for one in args.ranks:
        if one not in single:
            launched(one, args, out)


def served_from_one(out: Path, *, tiny: bool) -> float:
    """Load the checkpoint of two ranks into one process; greatest difference of the scores."""
    from recsys.training.checkpoint import load_latest

    case = cases(tiny=tiny)[-1]
    checkpoint = load_latest(out / "checkpoint-2")
    assert checkpoint is not None
    model = model_of(case)
    model.load_state_dict(dict(checkpoint.tensors["model"]))
    wanted = json.loads((out / "ranks-2.json").read_text())[-1]["probe"]
    pairs = zip(probe(model, case), wanted, strict=True)
    return max(abs(one - other) for one, other in pairs)


def rows_of_phase(one: Mapping[str, Any], alone: Mapping[str, Any] | None, how: str) -> list[Row]:
    """Make the lines of one batch size, against one process's if it trained this case."""
    size, last = one["ranks"], one["losses"][-2:]
    name = f"{one['case']}, {size} GPU{'s' * (size > 1)}{HOW[how]}"
    rows = [
        Row(name=f"{name}: step", value=one["ms"], unit="ms"),
        Row(name=f"{name}: labels", value=1e3 * one["batch"] / one["ms"], unit="/s"),
        Row(name=f"{name}: loss at the start", value=one["losses"][0]),
        Row(name=f"{name}: loss at the end", value=sum(last) / len(last)),
        Row(name=f"{name}: tables", value=one["tables_gib"], unit="GiB"),
        Row(name=f"{name}: peak", value=one["peak_gib"], unit="GiB"),
    ]
    if alone is None:
        return rows
    if how == "torchrun":
        slower = one["ms"] / alone["ms"]
        rows.append(Row(name=f"{name}: of a process's step", value=slower, unit="x", at_most=1.05))
    if size > 1:
        is_goal = not how and one["batch"] == SHOP["two_tower_training"]["batch_size"]
        at_least = 1.75 if is_goal else None
        speed = alone["ms"] / one["ms"]
        rows.append(Row(name=f"{name}: of one", value=speed, unit="x", at_least=at_least))
    if size > 1 and not how:  # others begin with another batch
        losses = zip(alone["losses"], one["losses"], strict=True)
        worst = max(abs(first - other) / first for first, other in losses)
        rows.append(Row(name=f"{name}: worst loss off", value=100 * worst, unit="%", at_most=0.5))
    return rows


def main() -> None:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--ranks", nargs="+", default=["1", "2"], help="numbers, each with a way")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU")
    parser.add_argument("--worker", help="be one of the ranks of this launch")
    parser.add_argument("--out", default="", help="folder of what the first rank writes")
    parser.add_argument("--page", action="store_true", help="of what is in the folder")
    parser.add_argument("--device", help="of the page")
    parser.add_argument("--commit", help="of the page")
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(args.out or temporary)
        out.mkdir(parents=True, exist_ok=True)
        served = out / "served.json"
        if not args.page:
            launch_all(args, out)
            if (out / "checkpoint-2").exists():
                served.write_text(json.dumps(served_from_one(out, tiny=args.tiny)))
        kept = sorted(path.stem.partition("-")[2] for path in out.glob("ranks-*.json"))
        found = {one: json.loads((out / f"ranks-{one}.json").read_text()) for one in kept}
        alone = {one["case"]: one for one in found[kept[0]] if one["ranks"] == 1}
        rows = [
            row
            for launch, of in found.items()
            for one in of
            for row in rows_of_phase(one, alone.get(one["case"]), divided(launch)[1])
        ]
        if served.exists():
            name = "checkpoint of 2 ranks in one process: worst difference of a score"
            rows.append(Row(name=name, value=json.loads(served.read_text()), at_most=1e-5))
        device = args.device
        if not (args.tiny or device):
            device = f"{torch.cuda.get_device_name()} x {max(divided(one)[0] for one in kept)}"
        name = f"two_tower_ranks{'_cpu' * args.tiny}"
        write_results(name, rows, device=device, commit=args.commit)


if __name__ == "__main__":
    main()
