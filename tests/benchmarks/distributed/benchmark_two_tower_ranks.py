"""Training over ranks: steps, loss, memory and checkpoint of a large two-tower, and exchanges.

A hundred million rows on GPUs. Every case goes the whole path of a user's training
(``recsys.training.loop.train`` with ``recsys.training.distributed``) over a stream of labels, the
same global batch on one rank and on several; on one without sharding too, by our kernels. Then
exchanges between ranks are timed by size (``constants.json``), for the calculator of clusters.

    python -m tests.benchmarks.distributed.benchmark_two_tower_ranks --ranks 1 2
    python -m tests.benchmarks.distributed.benchmark_two_tower_ranks --tiny   # on a CPU, by gloo
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.layers.embedding.collection import filled_later
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.two_tower import TwoTower
from recsys.training.distributed.several import SeveralRanks, local_device, process_group
from recsys.training.distributed.sharded import ShardingConfig
from recsys.training.loop import LoopConfig, train
from recsys.training.optim import AdamWConfig, ScheduleConfig, adamw
from recsys.training.progress import SilentProgress
from recsys.training.ranks import ALONE, Ranks
from tests.benchmarks.distributed.collectives import measured
from tests.benchmarks.distributed.experts_over_ranks import compared
from tests.benchmarks.distributed.world import USER, World
from tests.benchmarks.harness import Row, command_line, write_results

BLOCK = 1 << 20
"""Rows that are drawn at a time, from a seed of their own, whoever holds them."""
WARMUP = 12
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training."""

    world: World
    dim: int
    phases: tuple[tuple[int, int], ...]
    """Labels of a step over all ranks, and steps; one after the other on the same weights."""
    sharded: bool
    sharding: str = "row_wise"
    rule: str = "rowwise_adam"
    save: bool = False

    def name(self, batch: int) -> str:
        """Name a phase in the results."""
        rows = (self.world.num_users + self.world.num_items) / 1e6
        where = self.sharding if self.sharded else "one process"
        return f"{rows:.3g}M rows, batch {batch}, {where}{', saved' * self.save}"


@dataclass
class Stamps:
    """Loss of each step, and when it was known."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def log(self, step: int, **values: float) -> None:
        if "loss" in values:
            self.losses.append(values["loss"])
            self.seconds.append(time.perf_counter())


def model_of(case: Case, device: torch.device) -> TwoTower:
    """Build the towers; their tables lie undrawn on the device, or on the host to be sharded."""
    config = TwoTowerConfig(
        embedding_dim=case.dim,
        max_history=case.world.history,
        hidden_dim=4 * case.dim,
        dropout=0.0,
        id_dropout=0.0,
        num_uniform_negatives=2048,
    )
    name = USER.partition(".")[2]
    sizes = FeatureSizes(
        num_item_rows=case.world.num_items + 1,
        user_features={name: case.world.num_users + 1},
    )
    torch.manual_seed(0)
    with filled_later():
        model = TwoTower(config, sizes, ItemCatalogue.empty(sizes.num_item_rows))
    model.item_tower.item_counts = case.world.item_counts(torch.device("cpu"))
    return model.to(device)


@torch.no_grad()
def draw_rows(model: TwoTower, scale: Mapping[str, float]) -> None:
    """Fill tables with rows that do not depend on who holds them."""
    for number, (name, value) in enumerate(sorted(model.state_dict(keep_vars=True).items())):
        if ".embedding_bags." not in name:
            continue
        shards = (
            [(one.tensor, one.metadata.shard_offsets) for one in value.local_shards()]
            if hasattr(value, "local_shards")
            else [(value, [0, 0])]
        )
        width = value.size()[1]
        for tensor, (first, column) in shards:
            fill(tensor, first, column, width, scale[name.split(".")[0]], number)


def fill(tensor: Tensor, first: int, column: int, width: int, scale: float, number: int) -> None:
    """Draw the rows from ``first`` on of a table that has ``width`` columns."""
    last = first + len(tensor)
    for block in range(first // BLOCK, (last - 1) // BLOCK + 1):
        generator = torch.Generator(tensor.device).manual_seed(1_000_003 * number + block)
        rows = torch.randn(BLOCK, width, generator=generator, device=tensor.device)
        low, high = max(first, block * BLOCK), min(last, (block + 1) * BLOCK)
        own = rows[low - block * BLOCK : high - block * BLOCK, column : column + tensor.shape[1]]
        tensor[low - first : high - first] = own * scale / width**0.5
    if first == 0:
        tensor[0] = 0


def trained(case: Case, ranks: Ranks, device: torch.device, folder: Path) -> list[dict[str, Any]]:
    """Train one case on this rank and say how each phase went."""
    config = AdamWConfig(tables=cast("Any", case.rule), max_row_norm=None)
    begun = time.perf_counter()
    model = model_of(case, device)
    if case.sharded:
        ranks.shard(model, config)
    draw_rows(model, {"item_tower": 0.3, "query_tower": 1.0})
    optimizer = adamw(model, config)
    ready = time.perf_counter() - begun
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
    tables = torch.cuda.memory_allocated() if on_gpu else 0
    found = []
    for batch, steps in case.phases:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        stamps = steps_of(case, batch, steps, model, optimizer, ranks, device, folder)
        times = torch.tensor(stamps.seconds, dtype=torch.float64).diff()[WARMUP:]
        found.append(
            {
                "case": case.name(batch),
                "ranks": ranks.size,
                "batch": batch,
                "ms": 1e3 * float(times.median()),
                "losses": [round(one, 5) for one in stamps.losses],
                "ready_seconds": ready,
                "tables_gib": tables / GIB,
                "expected_gib": expected_bytes(case, ranks.size) / GIB,
                "peak_gib": torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0,
                "probe": probe(model, case) if case.save else [],
            }
        )
    return found


def steps_of(
    case: Case,
    batch: int,
    steps: int,
    model: TwoTower,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    device: torch.device,
    folder: Path,
) -> Stamps:
    """Train one phase by the loop that users' trainings go through."""
    stamps, size, rank = Stamps(), ranks.size, ranks.rank
    part = (batch * rank // size, batch * (rank + 1) // size)

    def loss_at(step: int) -> Tensor:
        if step == steps:
            # What follows gathers whole tables, which only the case of the checkpoint is for.
            raise StopIteration
        queries, labels = case.world.batch(step, batch, part, device)
        return model.loss(queries, labels, ranks.share(step, 0))

    settings = LoopConfig(
        num_steps=steps if case.save else steps + 1,
        schedule=ScheduleConfig(learning_rate=3e-3, warmup_steps=10, decay="constant"),
        log_every=1,
        checkpoint_every=steps if case.save else None,
        checkpoint_seconds=None,
    )
    with suppress(StopIteration):
        train(
            model,
            loss_at,
            optimizer,
            settings,
            tracker=stamps,
            progress=SilentProgress(),
            checkpoint_dir=folder if case.save else None,
            ranks=ranks,
        )
    return stamps


def expected_bytes(case: Case, size: int) -> float:
    """Weights and the rule's state of the tables, of one of ``size`` ranks."""
    words = {
        "rowwise_adam": 2 * case.dim + 1,
        "adam": 3 * case.dim,
        "rowwise_adagrad": case.dim + 1,
    }
    rows = case.world.num_users + case.world.num_items
    return 4 * rows * words[case.rule] / size


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


def cases(*, tiny: bool, size: int) -> list[Case]:
    """Trainings of one number of ranks."""
    small = World(num_users=200_000, num_items=100_000, num_tastes=100, num_events=1_000_000)
    if tiny:
        # On CPUs TorchRec cuts by tables and columns alone, and FBGEMM has no Adam.
        one = Case(
            world=small,
            dim=32,
            phases=((1024, 32), (4096, 24)),
            sharded=True,
            sharding="table_wise",
            rule="rowwise_adagrad",
        )
        alone = [replace(one, sharded=False)] * (size == 1)
        return [*alone, one, replace(one, phases=((1024, 24),), save=True)]
    large = World(num_users=80_000_000, num_items=20_000_000)
    saved = World(num_users=1_600_000, num_items=400_000)
    phases = ((16384, 200), (32768, 50), (8192, 50))
    spread = Case(world=large, dim=64, phases=phases, sharded=True)
    alone = [replace(spread, sharded=False)] * (size == 1)
    kept = Case(world=saved, dim=64, phases=((16384, 40),), sharded=True, save=True)
    return [*alone, spread, kept]


def work(args: argparse.Namespace) -> None:
    """Run every case on this rank."""
    device = local_device("cpu" if args.tiny else "cuda")
    torch.set_num_threads(1 if args.tiny else 8)
    with process_group(device, 120):
        size, rank = dist.get_world_size(), dist.get_rank()
        found: dict[str, Any] = {"trainings": [], "exchanges": []}
        out = Path(args.out)
        for case in cases(tiny=args.tiny, size=size):
            sharding = ShardingConfig(shard_from=1, sharding=cast("Any", case.sharding))
            ranks = SeveralRanks(sharding) if case.sharded else ALONE
            own = trained(case, ranks, device, out / f"checkpoint-{size}")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            found["trainings"] += own
            for one in own if rank == 0 else []:
                print({k: v for k, v in one.items() if k not in ("losses", "probe")}, flush=True)
            (out / f"ranks-{size}-{rank}.json").write_text(json.dumps(found))
        if size > 1:
            found["experts"] = compared(device, 256 if args.tiny else 16384, tiny=args.tiny)
            found["exchanges"] = measured(device, 1 << (22 if args.tiny else 28))
            (out / f"ranks-{size}-{rank}.json").write_text(json.dumps(found))


def launched(size: int, args: argparse.Namespace, out: Path) -> None:
    """Start so many ranks by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={size}", "-m", __spec__.name, "--out", str(out)]
    command += ["--worker"] + ["--tiny"] * args.tiny
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "4"})


def served_from_one(out: Path, *, tiny: bool) -> float:
    """Load the checkpoint of several ranks into one process; greatest difference of the scores."""
    from recsys.training.checkpoint import load_latest

    case = cases(tiny=tiny, size=2)[-1]
    checkpoint = load_latest(out / "checkpoint-2")
    assert checkpoint is not None
    model = model_of(case, torch.device("cpu"))
    model.load_state_dict(dict(checkpoint.tensors["model"]))
    first = json.loads((out / "ranks-2-0.json").read_text())
    wanted = first["trainings"][-1]["probe"]
    got = probe(model, case)
    return max(abs(one - other) for one, other in zip(got, wanted, strict=True))


def rows_of(out: Path, sizes: list[int], *, tiny: bool) -> list[Row]:
    """Make a table of what the ranks wrote."""
    found = {size: json.loads((out / f"ranks-{size}-0.json").read_text()) for size in sizes}
    alone = {one["case"]: one for one in found[1]["trainings"]}
    rows = []
    for size, of_size in found.items():
        for one in of_size["trainings"]:
            rows += rows_of_phase(one, size, alone.get(one["case"]) if size > 1 else None)
        for one in of_size.get("experts", []):
            name, both = one["case"], f"{one['replicated']:.4g} ms on every rank"
            rows.append(
                Row(
                    name=f"{name}: spread over {size} ranks",
                    value=one["spread"],
                    unit="ms",
                    peer=both,
                    ratio=one["replicated"] / one["spread"],
                )
            )
            error = one["worst_error"]
            rows.append(Row(name=f"{name}: worst error of a gradient", value=error, at_most=0.02))
    if 2 in found:
        name = "checkpoint of 2 ranks in one process: worst difference of a score"
        rows.append(Row(name=name, value=served_from_one(out, tiny=tiny), at_most=1e-5))
    return rows


def rows_of_phase(one: Mapping[str, Any], size: int, alone: Mapping[str, Any] | None) -> list[Row]:
    """Make the lines of one batch size, against one rank's."""
    name, last = f"{one['case']}, {size} rank{'s' * (size > 1)}", one["losses"][-20:]
    rows = [
        Row(name=f"{name}: step", value=one["ms"], unit="ms"),
        Row(name=f"{name}: labels", value=1e3 * one["batch"] / one["ms"], unit="/s"),
        Row(name=f"{name}: loss of the last 20", value=sum(last) / len(last)),
    ]
    if one["peak_gib"]:
        rows += [
            Row(name=f"{name}: tables", value=one["tables_gib"], unit="GiB"),
            Row(name=f"{name}: as planned", value=one["expected_gib"], unit="GiB"),
            Row(name=f"{name}: peak", value=one["peak_gib"], unit="GiB"),
        ]
    if alone is not None:
        share = 100 * alone["ms"] / one["ms"] / size
        rows.append(Row(name=f"{name}: of linear", value=share, unit="%", at_least=85))
        losses = zip(alone["losses"], one["losses"], strict=True)
        worst = max(abs(first - other) / first for first, other in losses)
        rows.append(Row(name=f"{name}: worst loss off by", value=100 * worst, unit="%"))
    return rows


def main() -> None:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU")
    parser.add_argument("--worker", action="store_true", help="be one rank")
    parser.add_argument("--out", default="", help="folder of what each rank writes")
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(args.out or temporary)
        out.mkdir(parents=True, exist_ok=True)
        for size in args.ranks:
            launched(size, args, out)
        write(out, args.ranks, tiny=args.tiny)


def write(out: Path, sizes: list[int], *, tiny: bool) -> None:
    """Write the page of the trainings and the constants of exchanges."""
    device = None if tiny else f"{torch.cuda.get_device_name()} x {max(sizes)}"
    end = "_cpu" * tiny
    write_results(f"two_tower_ranks{end}", rows_of(out, sizes, tiny=tiny), device=device)
    largest = json.loads((out / f"ranks-{max(sizes)}-0.json").read_text())
    rows = [
        Row(name=f"{one['kind']} {one['bytes']}: seconds", value=one["seconds"], unit="s")
        for one in largest["exchanges"]
    ]
    if rows:
        write_results(f"constants{end}", rows, device=device)


if __name__ == "__main__":
    main()
