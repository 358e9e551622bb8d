"""Time our sequence model beside RecBole's and RecTools' SASRec on MovieLens, on CPU.

All three have the same size (width, blocks, heads, events read), rank the whole catalogue in their
loss, and keep their own defaults otherwise, ours those for long histories. They fit on all but the
last two events of each user and are measured by NDCG@10 of the second last, full catalogue,
history left out; the last event, the test's, is not read. Seconds are of the CPU, one thread each,
so that what else the machine does counts little; epochs alternate, one of each in turn, so that it
slows all of them alike.

Each peer has an environment of its own with what its metadata pins:

    python3.11 -m venv rb && rb/bin/pip install torch==2.13.0 numpy==1.26.4 recbole==1.2.1 \
        'ray<=2.6.3' 'setuptools<81'
    python3.11 -m venv rt && rt/bin/pip install torch==2.13.0 'numpy<2' rectools[torch]==0.19 \
        'pytorch-lightning<=2.5.2'
    RECSYS_DATA_MIRROR=/data python -m tests.benchmarks.sequence.benchmark_speed \
        --recbole rb/bin/python --rectools rt/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.tensors import read_inputs
from pipelines.presets import PRESETS
from pipelines.presets.resolve import with_dataset
from pipelines.stages.list import STAGES
from tests.benchmarks.harness import Row, command_line, write_results

PEERS = Path(__file__).parent / "peers"
GOALS = {"recbole": 10.0, "rectools": 3.0}


@dataclass(kw_only=True)
class Trainee:
    """A model in a process of its own, and what its epochs gave."""

    name: str
    process: subprocess.Popen[str]
    max_epochs: int
    seconds: list[float] = field(default_factory=list)
    ndcg: list[float] = field(default_factory=list)

    def request_epoch(self) -> None:
        """Train one epoch and keep its seconds and NDCG."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.seconds.append(answer["seconds"])
        self.ndcg.append(answer["ndcg"])
        print(f"{self.name} epoch {len(self.ndcg)}: {answer}", flush=True)

    def seconds_to(self, target: float) -> float | None:
        """Sum the epochs until NDCG reached a target, at the typical seconds of one."""
        reached = [epoch for epoch, value in enumerate(self.ndcg, start=1) if value >= target]
        return reached[0] * statistics.median(self.seconds) if reached else None


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--recbole", type=Path, help="python of RecBole's environment")
    parser.add_argument("--rectools", type=Path, help="python of RecTools' environment")
    parser.add_argument(
        "--preset", choices=("movielens_100k", "movielens_1m"), default="movielens_100k"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the users, evenly spaced")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=30, help="of ours and of RecTools")
    parser.add_argument("--recbole-epochs", type=int, default=10)
    parser.add_argument("--workspace", type=Path, default=Path("runs/sequence-speed"))
    return parser.parse_args()


def histories(options: argparse.Namespace) -> dict[str, Any]:
    """Read a data set's sequences by the pipeline, without anyone's last event."""
    config = replace(PRESETS[options.preset](), workspace=options.workspace / options.preset)
    run_stages(pick_stages(STAGES, (), "build_features"), with_dataset(config))
    inputs = read_inputs(config.workspace / "build_features", None, "given")
    offsets = np.asarray(inputs.sequences.offsets)
    whole = np.flatnonzero(np.diff(offsets) >= 3)
    users = whole[np.linspace(0, len(whole) - 1, int(options.share * len(whole))).astype(int)]
    rows = [inputs.sequences.item_rows[offsets[user] : offsets[user + 1] - 1] for user in users]
    items, numbered = np.unique(np.concatenate(rows), return_inverse=True)
    return {
        "item_rows": numbered.astype(np.int64) + 1,
        "offsets": np.cumsum([0, *(len(part) for part in rows)]),
        "num_items": len(items),
    }


def started(options: argparse.Namespace, data: Path) -> list[Trainee]:
    """Start ours and the peers that there is an environment for."""
    size = [str(value) for value in (options.dim, options.blocks, options.heads, options.length)]
    drivers = [("ours", Path(sys.executable), "ours.py", options.epochs)]
    if options.rectools:
        drivers.append(("rectools", options.rectools, "rectools_sasrec.py", options.epochs))
    if options.recbole:
        drivers.append(("recbole", options.recbole, "recbole_sasrec.py", options.recbole_epochs))
    trainees = []
    for name, python, driver, epochs in drivers:
        process = subprocess.Popen(
            [str(python.absolute()), str(PEERS / driver), str(data), *size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=data.parent,  # RecBole writes logs where it stands
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            sys.exit(f"{driver} ended before it was ready; run it by hand to see why")
        trainees.append(Trainee(name=name, process=process, max_epochs=epochs))
    return trainees


def compared(ours: Trainee, peer: Trainee) -> list[Row]:
    """Compare seconds of an epoch, and seconds until both have the same NDCG."""
    target = min(max(ours.ndcg), max(peer.ndcg))
    mine, theirs = ours.seconds_to(target), peer.seconds_to(target)
    assert mine is not None
    assert theirs is not None
    goal = GOALS[peer.name]
    return [
        Row(
            name=f"{peer.name}: an epoch, median of {len(peer.seconds)}",
            value=statistics.median(peer.seconds),
            unit="s",
            ours=statistics.median(ours.seconds),
        ),
        Row(
            name=f"{peer.name}: training until NDCG@10 {target:.4f}, the lower of both bests",
            value=theirs,
            unit="s",
            ours=mine,
            min_ratio=goal,
        ),
        Row(
            name=f"{peer.name}: best NDCG@10 of {len(peer.ndcg)} epochs",
            value=max(peer.ndcg),
            peer=f"ours {max(ours.ndcg):.4f} of {len(ours.ndcg)}",
        ),
    ]


def main() -> None:
    options = parsed_arguments()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "histories.npz"
        arrays = histories(options)
        np.savez(data, **arrays)
        trainees = started(options, data)
        for epoch in range(max(trainee.max_epochs for trainee in trainees)):
            for trainee in trainees:
                if epoch < trainee.max_epochs:
                    trainee.request_epoch()
        for trainee in trainees:
            trainee.process.kill()
    ours, *peers = trainees
    write_results(
        "speed",
        [row for peer in peers for row in compared(ours, peer)],
        notes=(
            f"{options.preset}, {options.share:.0%} of its users with three events or more: "
            f"{len(arrays['offsets']) - 1} users, {len(arrays['item_rows'])} events, "
            f"{arrays['num_items']} items; width {options.dim}, {options.blocks} blocks, "
            f"{options.heads} heads, {options.length} events read, all with a full softmax; "
            "CPU seconds of one thread. "
            "An epoch of RecTools reads only the latest events of a long history, one of ours and "
            "of RecBole all of them."
        ),
    )


if __name__ == "__main__":
    main()
