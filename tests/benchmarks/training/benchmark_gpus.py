"""GPU tests, sequence training, Beauty's recipe, HSTU attention and two ranks, in one command.

    python -m tests.benchmarks.training.benchmark_gpus --out FOLDER [--arrays lab/beauty]
    python -m tests.benchmarks.training.benchmark_gpus --out FOLDER --tiny   # on a CPU, by gloo
    python -m tests.benchmarks.training.benchmark_gpus --page FOLDER --device "NVIDIA H100 x 2"

Needs torch, Triton, numpy, safetensors, and pytest for the suite. Every part is a process with a
limit in seconds and writes its lines to FOLDER; those of one GPU share two GPUs if there are two.

Axes: U queries, k candidates of each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from recsys.data.batch import Jagged, JaggedBatch, cut_offsets
from recsys.fitting.spec import TrainingRun, run_training
from recsys.kernels.choice import without
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Candidates
from recsys.models.sequence.config import SequenceConfig
from recsys.training.distributed.several import local_device, present_ranks, process_group
from recsys.training.passes import RankerFitConfig, TrainingConfig
from recsys.training.ranker_fit import ranker_loss
from recsys.training.ranking_examples import Outcomes, RankingExamples, labels_of
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.training.parts import (
    SERVED_FAST,
    fit_steps,
    whole_recipe,
    world,
    world_passes,
)
from tests.benchmarks.training.profiled_steps import NUM_STEPS, profiled

PEAK = 989e12
"""Dense bfloat16 operations a second of an H100."""
BIG = SequenceConfig(
    embedding_dim=1024,
    hidden_dim=4096,
    num_blocks=8,
    num_heads=8,
    max_length=200,
    dropout=0.0,
    id_dropout=0.0,
)
"""About 100M weights besides the table of items; so have HSTU_BLOCKS of kind ``hstu``."""
HSTU_BLOCKS = 19
SMALL = replace(BIG, embedding_dim=16, hidden_dim=16, num_blocks=1, num_heads=1, max_length=20)
WORLDS = {"ML-1M's size": (6_040, 3_416, 165), "10M events": (60_600, 100_000, 165)}
"""Users, items, and events of each user."""
RANKERS = {
    "default ranker, batch 64": (RankerConfig(trunk="sparse", id_dropout=0.0), 64),
    "ranker 512 wide, 32 experts of 2,048, batch 256": (
        RankerConfig(
            trunk="sparse", embedding_dim=512, hidden_dim=2048, num_experts=32, id_dropout=0.0
        ),
        256,
    ),
}
SUITE = (
    "-q",
    "-rs",
    "-m",
    "gpu",
    "tests",
    "--durations=25",
    "--durations-min=2",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:benchmark",
)
LIMITS = {"suite": 330, "sequence": 240, "beauty": 120, "passes": 90, "hstu": 90, "ranks": 150}
"""Seconds that a part may take."""


class Times:
    """When each reading of a training was logged, and its loss."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def log(self, step: int, **values: float) -> None:
        if "loss" in values:
            self.seconds.append(time.perf_counter())
            self.losses.append(values["loss"])


def suite(options: argparse.Namespace) -> list[Row]:
    """Run the GPU tests, eight at a time if pytest-xdist is there."""
    many = ("-n", "8") if find_spec("xdist") and not options.tiny else ()
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITE, *many], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    (options.out / "suite.txt").write_text(done.stdout + done.stderr)
    slow = re.findall(r"^([\d.]+)s (?:call|setup) +(\S+)", done.stdout, re.MULTILINE)
    counts = {
        word: int(count)
        for count, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)
    }
    rows = [Row(name="GPU tests", value=seconds, unit="s", at_most=300)]
    rows += [Row(name="GPU tests, exit code", value=done.returncode, at_most=0)]
    rows += [Row(name=f"GPU tests {word}", value=count) for word, count in counts.items()]
    rows += [Row(name=f"test {name}", value=float(each), unit="s") for each, name in slow]
    return rows


def sequence(options: argparse.Namespace) -> list[Row]:
    """Profile steps of a model of 100M weights: share of the peak, and of each kernel."""
    device, rows = torch.device("cpu" if options.tiny else "cuda"), list[Row]()
    config, batch = (SMALL, 16) if options.tiny else (BIG, 128)
    for block in ("attention", "hstu"):
        for name, (users, items, events) in WORLDS.items():
            if options.tiny:
                users, items = 100, 50
            inputs, own, models = world(users, items, events), replace(config, block=block), []
            if block == "hstu" and not options.tiny:
                own = replace(own, num_blocks=HSTU_BLOCKS)
            result = profiled(
                lambda curve, inputs=inputs, own=own, models=models: models.append(  # type: ignore[misc]
                    fit_steps(
                        inputs, own, TrainingConfig(batch_size=batch), NUM_STEPS, curve, device
                    )
                ),
                device,
            )
            dense = sum(one.numel() for one in models[0].encoder.parameters())
            length = min(events - 3, own.max_length)
            per_label = 6 * (dense + items * own.embedding_dim)
            per_label += 6 * own.num_blocks * own.embedding_dim * length
            flops = per_label * batch * length / (result.step_ms / 1e3)
            case = f"{name}, {block}, {dense / 1e6:.0f}M weights"
            more = f"{result.launches:.0f} kernels, busy {result.busy_ms:.1f} ms"
            rows += [
                Row(name=f"{case}: step, {more}", value=result.step_ms, unit="ms"),
                Row(name=f"{case}: labels", value=1e3 * batch * length / result.step_ms, unit="/s"),
                Row(name=f"{case}: MFU", value=100 * flops / PEAK, unit="%"),
            ]
            rows += [
                Row(name=f"{case}: share of {kernel[:60]}", value=100 * share, unit="%")
                for kernel, share in list(result.shares.items())[:12]
            ]
            rows += [
                Row(name=f"{case}: waits at {place[:60]}", value=count)
                for place, count in result.waits.items()
            ]
            write(options, "sequence", rows)
    return rows


def beauty(options: argparse.Namespace) -> list[Row]:
    """Train and measure what profile ``fast`` of Beauty's recipe serves, then once more."""
    if options.arrays is None or options.tiny:
        return []
    first, found = (whole_recipe(options.arrays, SERVED_FAST) for _ in range(2))
    rows = [
        Row(name="Beauty's recipe, kernels compiled meanwhile", value=first["seconds"], unit="s"),
        Row(name="Beauty's recipe", value=found["seconds"], unit="s", at_most=30),
    ]
    return rows + [
        Row(
            name=f"Beauty's recipe, {name} (NDCG@10 {one['ndcg@10']:.4f})",
            value=one["seconds"],
            unit="s",
        )
        for name, one in found["rows"].items()
    ]


def passes(options: argparse.Namespace) -> list[Row]:
    """Train small models of a world of 10M events for a pass."""
    return [
        Row(name=f"10M events, {name}: a pass", value=one["fit_seconds"], unit="s")
        for name, one in ({} if options.tiny else world_passes()).items()
    ]


def hstu(options: argparse.Namespace) -> list[Row]:
    """Time HSTU attention without biases and with both."""
    from tests.benchmarks.kernels import benchmark_hstu_attention as benchmark

    rows: list[Row] = []
    for case in benchmark.CASES if not options.tiny else ():
        rows += [replace(row, name=f"HSTU, {row.name}") for row in benchmark.rows_of(case)]
        write(options, "hstu", rows)
    return rows


def ranking_task(num_items: int, num_queries: int) -> tuple[RankerInputs, RankingExamples]:
    """Draw lists of 200 candidates whose scores tell a little of the target."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(1, num_items + 1, (num_queries, 200), generator=generator)  # [U, k]
    place = torch.randint(0, 200, (num_queries, 1), generator=generator)
    targets = Jagged.one_each(rows.gather(1, place)[:, 0])
    features = torch.randn(num_queries, 200, 2, generator=generator)
    features[:, :, 0] += (rows == targets.values[:, None]) * 1.0
    unknown = Outcomes.of_values(torch.full((num_queries,), float("nan")))
    labels = labels_of(rows, targets, unknown, ("next",), 4.0)
    history = torch.randint(1, num_items + 1, (20 * num_queries,), generator=generator)
    queries = {"history": Jagged(history, cut_offsets(torch.full((num_queries,), 20)))}
    inputs = RankerInputs(
        num_item_rows=num_items + 1,
        tasks=("next",),
        candidate_dense=("score", "other"),
        base_feature="score",
    )
    return inputs, RankingExamples(
        JaggedBatch(queries), targets, Candidates(rows, features), labels
    )


def ranks(options: argparse.Namespace) -> list[Row]:
    """Train the sequence model and rankers on this rank, without dropout: step and last loss."""
    device, size = local_device("cpu" if options.tiny else "cuda"), options.ranks
    steps, num_items = (100, 50) if options.tiny else (150, 12_101)
    with ExitStack() as stack:
        if size > 1:
            stack.enter_context(process_group(device, 120))
        if options.launched:
            stack.enter_context(without("captured_step"))
        rows, present = list[Row](), present_ranks()
        how = f"{size} GPU{'s' * (size > 1)}{', launched' * options.launched}"

        def note(case: str, times: Times) -> None:
            each = (times.seconds[-1] - times.seconds[0]) / (50 * (len(times.seconds) - 1))
            rows.append(Row(name=f"{case}, {how}: step", value=1e3 * each, unit="ms"))
            rows.append(Row(name=f"{case}, {how}: loss", value=times.losses[-1]))
            if present.rank == 0:
                write(options, f"ranks-{size}{'-launched' * options.launched}", rows)

        name, (users, items, events) = next(iter(WORLDS.items()))
        config, batch = (SMALL, 16) if options.tiny else (BIG, 256)
        inputs = world(100 if options.tiny else users, 50 if options.tiny else items, events)
        run = TrainingRun(seed=0, device=device, curve=(times := Times()), ranks=present)
        fit_steps(inputs, config, TrainingConfig(batch_size=batch), steps, times, device, run)
        note(f"{name}, sequence, batch {batch}", times)
        for case, (settings, batch) in RANKERS.items():
            if options.tiny:
                settings, batch = RankerConfig(embedding_dim=8), 8
            sizes, examples = ranking_task(num_items, 200 if options.tiny else 40_000)
            torch.manual_seed(0)
            model = Ranker(
                settings, sizes, ItemCatalogue.empty(num_items + 1), torch.ones(num_items + 1)
            ).to(device)
            training = RankerFitConfig(batch_size=batch)
            run = replace(run, curve=(times := Times()), ranks=present.copies())
            everyone = torch.arange(len(examples.labels))
            loss = ranker_loss(model, examples, everyone, training, 0, device)
            run_training(model, loss, training, training.for_steps(steps, steps), run, None)
            note(case, times)
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "suite": suite,
    "sequence": sequence,
    "beauty": beauty,
    "passes": passes,
    "hstu": hstu,
    "ranks": ranks,
}


def write(options: argparse.Namespace, name: str, rows: Sequence[Row]) -> None:
    """Keep a part's lines, also those of one that is stopped by its limit later."""
    (options.out / f"{name}.json").write_text(json.dumps([asdict(row) for row in rows]))


def start(options: argparse.Namespace, part: str, gpu: str | None = None, size: int = 0) -> None:
    """Run a part in a process of its own, or in one a rank."""
    command = [sys.executable, "-m"]
    if size > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "-m"]
    assert __spec__ is not None
    command += [__spec__.name, "--out", str(options.out), "--part", part, "--ranks", str(size or 1)]
    command += ["--tiny"] * options.tiny + ["--launched"] * options.launched
    command += ["--arrays", str(options.arrays)] if options.arrays else []
    threads = (os.cpu_count() or 4) // max(1, torch.cuda.device_count())
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, env=environment, timeout=LIMITS[part], check=False)
        how = f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        how = f"stopped after its limit of {LIMITS[part]} s"
    print(f"== {part} {size or ''}: {how}, {time.perf_counter() - begin:.0f} s", flush=True)


def everything(options: argparse.Namespace) -> None:
    """Run the chosen parts: those of one GPU side by side if there are two, then the ranks."""
    count = torch.cuda.device_count()
    alone = [one for one in options.only if one != "ranks"]
    lanes = [alone]
    if count > 1 and "suite" in alone:
        lanes = [["suite"], [one for one in alone if one != "suite"]]
    with ThreadPoolExecutor() as pool:
        for gpu, lane in enumerate(lanes):
            pool.submit(lambda own, on: [start(options, one, on) for one in own], lane,
                        str(gpu) if count else None)  # fmt: skip
    if "ranks" in options.only:
        start(options, "ranks", "0" if count else None, 1)
        launched = argparse.Namespace(**{**vars(options), "launched": True})
        start(launched, "ranks", "0" if count else None, 1)
        if count > 1 or options.tiny:
            start(options, "ranks", None, 2)


def page(options: argparse.Namespace) -> None:
    """Write the results page of what the parts kept, with two ranks against one."""
    kept: dict[str, list[dict[str, Any]]] = {
        path.stem: json.loads(path.read_text()) for path in sorted(options.page.glob("*.json"))
    }
    rows = [Row(**one) for lines in kept.values() for one in lines]
    values = {row.name: row.value for row in rows}
    for name, two in values.items():
        one = values.get(name.replace(", 2 GPUs", ", 1 GPU"))
        if ", 2 GPUs: " in name and one is not None:
            case, _, what = name.partition(", 2 GPUs: ")
            if what == "step":
                rows.append(Row(name=f"{case}: two GPUs against one", value=one / two, unit="x"))
            else:
                off = 100 * abs(two / one - 1)
                rows.append(Row(name=f"{case}: loss off", value=off, unit="%", at_most=0.5))
    write_results("gpus", rows, device=options.device, commit=options.commit)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, default=Path("lab/out"), help="folder of the lines")
    parser.add_argument("--arrays", type=Path, help="prepared arrays of Beauty; without, none")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU")
    parser.add_argument("--page", type=Path, help="make the page of this folder's lines")
    parser.add_argument("--device", help="of the page")
    parser.add_argument("--commit", help="of the page")
    parser.add_argument("--part", choices=PARTS, help="be one part")
    parser.add_argument("--ranks", type=int, default=1, help="be one of that many ranks")
    parser.add_argument("--launched", action="store_true", help="without captured steps")
    options = parser.parse_args()
    if options.page:
        page(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part is None:
        everything(options)
        return
    rows = PARTS[options.part](options)
    if options.part != "ranks":
        write(options, options.part, rows)


if __name__ == "__main__":
    main()
