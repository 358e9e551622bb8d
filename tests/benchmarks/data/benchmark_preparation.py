"""Preparation speed and memory: raw Parquet events to histories and splits.

    python -m tests.benchmarks.data.benchmark_preparation --events 20000000 \
        --large-events 60000000 --recbole-python /tmp/recbole-env/bin/python

Every build runs in a process of its own, whose peak resident memory counts, interpreter included.
The synthetic events have text ids, popularity after Zipf's law, a fixed population of users and
items, and 30 days per 20 million events. The peers do the core of the same work: read, check,
drop duplicates, 5-core, sort into histories, leave the last two out. RecBole needs an environment
of its own (recbole==1.2.1, numpy==1.26.4) and is left out without --recbole-python.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Row, command_line, write_results

EVENTS_PER_FILE = 2_000_000
EVENTS_PER_DAY = 666_667
MIN_EVENTS = 5
GOAL_SPEED = 2.0
GOAL_BYTES = 120
GOAL_GROWTH = 1.1


def generate(folder: Path, num_events: int) -> None:
    """Write Parquet files of ``num_events`` events."""
    import numpy as np
    import polars as pl

    num_users, num_items = min(400_000, num_events // 20), min(100_000, num_events // 100)
    folder.mkdir(parents=True)
    seconds = 86_400 * max(1, num_events // EVENTS_PER_DAY)
    for number, start in enumerate(range(0, num_events, EVENTS_PER_FILE)):
        rng = np.random.default_rng([7, number])
        num = min(EVENTS_PER_FILE, num_events - start)
        frame = pl.DataFrame(
            {
                "user": (num_users * rng.random(num) ** 2).astype(np.int64),
                "item": (num_items ** rng.random(num)).astype(np.int64),
                "time": 1_700_000_000 + rng.integers(0, seconds, num),
            }
        )
        frame.select(
            pl.format("u{}", "user").alias("user_id"),
            pl.format("i{}", "item").alias("item_id"),
            pl.from_epoch("time").dt.replace_time_zone("UTC").alias("event_time"),
        ).write_parquet(folder / f"events-{number:03d}.parquet", row_group_size=500_000)


def prepare_ours(folder: Path, out: Path, *, whole: bool) -> int:
    """Build the artefact; ``whole`` adds context features and the events by day."""
    from features.build import FeaturesConfig, FilterConfig, SourceConfig, build_features
    from features.point_in_time import FEATURES

    config = FeaturesConfig(
        events=SourceConfig(paths=tuple(sorted(folder.glob("*.parquet")))),
        filters=FilterConfig(
            min_user_events=MIN_EVENTS, min_item_events=MIN_EVENTS, max_user_events=None
        ),
        context_features=tuple(FEATURES) if whole else (),
        write_events=whole,
    )
    return build_features(config, out).events


def prepare_pandas(folder: Path, out: Path) -> int:
    """Do the same core work as an experienced pandas user would."""
    import numpy as np
    import pandas as pd

    events = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))])
    events = events.dropna()
    now = pd.Timestamp.now(tz="UTC") + pd.Timedelta(days=1)
    early = pd.Timestamp("1990-01-01", tz="UTC")
    events = events[(events["event_time"] >= early) & (events["event_time"] <= now)]
    for key in ("user_id", "item_id"):
        events[key] = events[key].astype("category")
        names = events[key].cat.categories.to_series()
        bad = names.str.contains("\0", regex=False) | (names.str.len() > 256)
        events = events[~events[key].isin(names[bad])]
    events = events.drop_duplicates()
    while True:
        users = events["user_id"].map(events["user_id"].value_counts()).astype(np.int64)
        items = events["item_id"].map(events["item_id"].value_counts()).astype(np.int64)
        kept = (users >= MIN_EVENTS) & (items >= MIN_EVENTS)
        if kept.all():
            break
        events = events[kept]
    user_rows = events["user_id"].cat.remove_unused_categories().cat.codes.to_numpy() + 1
    item_rows = events["item_id"].cat.remove_unused_categories().cat.codes.to_numpy() + 1
    seconds = events["event_time"].astype("datetime64[s, UTC]").astype(np.int64).to_numpy()
    order = np.lexsort((seconds, user_rows))
    counts = np.bincount(user_rows)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    out.mkdir(parents=True)
    np.save(out / "item_rows.npy", item_rows[order].astype(np.int64))
    np.save(out / "times.npy", seconds[order])
    np.save(out / "offsets.npy", offsets)
    np.save(out / "train_end.npy", offsets[1:] - 2 * (counts >= 3))
    np.save(out / "validation_end.npy", offsets[1:] - (counts >= 3))
    return len(events)


def prepare_recbole(folder: Path, out: Path) -> int:
    """Let RecBole filter, remap, sort and split; it reads its own text format from ``folder``."""
    import logging

    from recbole.config import Config
    from recbole.data import create_dataset

    logging.disable(logging.CRITICAL)
    config = Config(
        model="BPR",
        dataset="synthetic",
        config_dict={
            "data_path": str(folder),
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "user_inter_num_interval": f"[{MIN_EVENTS},inf)",
            "item_inter_num_interval": f"[{MIN_EVENTS},inf)",
            "eval_args": {
                "split": {"LS": "valid_and_test"},
                "order": "TO",
                "group_by": "user",
                "mode": "full",
            },
            "use_gpu": False,
            "checkpoint_dir": str(out),
        },
    )
    dataset = create_dataset(config)
    return sum(len(part) for part in dataset.build())


def write_recbole_table(folder: Path, target: Path) -> None:
    """Turn the events into RecBole's atomic file; not part of its measured time."""
    import polars as pl

    (target / "synthetic").mkdir(parents=True)
    frame = pl.scan_parquet(folder / "*.parquet").select(
        pl.col("user_id").alias("user_id:token"),
        pl.col("item_id").alias("item_id:token"),
        pl.col("event_time").dt.epoch("s").alias("timestamp:float"),
    )
    frame.sink_csv(target / "synthetic" / "synthetic.inter", separator="\t")


def child(task: str, folder: Path, num_events: int) -> None:
    """Do one task in this process and print what it took."""
    if task == "generate":
        generate(folder, num_events)
        return
    if task == "recbole-table":
        write_recbole_table(folder, folder.with_name(folder.name + "-recbole"))
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        out = Path(scratch) / "out"
        start = time.perf_counter()
        if task == "recbole":
            kept = prepare_recbole(folder.with_name(folder.name + "-recbole"), out)
        elif task == "pandas":
            kept = prepare_pandas(folder, out)
        else:
            kept = prepare_ours(folder, out, whole=task == "ours-whole")
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "kept": kept}))


def measured(task: str, folder: Path, num_events: int, python: str) -> dict[str, Any]:
    """Run one task in a process of its own."""
    command = [python, "-m", __spec__.name, "--child", task, "--data", str(folder)]
    result = subprocess.run(
        [*command, "--events", str(num_events)], stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def dataset(root: Path, num_events: int) -> Path:
    folder = root / f"events-{num_events}"
    if not folder.exists():
        measured("generate", folder, num_events, sys.executable)
    return folder


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--large-events", type=int, default=60_000_000, help="0 leaves it out")
    parser.add_argument("--pandas-events", type=int, default=5_000_000)
    parser.add_argument("--recbole-events", type=int, default=2_000_000)
    parser.add_argument("--recbole-python", help="interpreter that has recbole==1.2.1")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "preparation")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.data, arguments.events)
        return
    compare(arguments)


def speed(
    task: str, data: Path, num_events: int, repeats: int = 1, python: str = sys.executable
) -> dict[str, Any]:
    """Measure a task: the median rate in million events a second, the largest peak in bytes."""
    runs = [measured(task, data, num_events, python) for _ in range(repeats)]
    seconds = statistics.median(run["seconds"] for run in runs)
    peak = max(run["peak_bytes"] for run in runs)
    line = f"{task}, {num_events:,} events: {seconds:.1f} s, peak {peak / 1e9:.2f} GB"
    print(f"{line}, {runs[0]['kept']:,} events kept", flush=True)
    return {"rate": num_events / seconds / 1e6, "peak": peak, "kept": runs[0]["kept"]}


def own_rows(root: Path, num: int, large: int, repeats: int) -> Iterator[Row]:
    """Measure build_features by itself."""
    folder, millions = dataset(root, num), f"{num / 1e6:g}M"
    whole = speed("ours-whole", folder, num, repeats)
    core = speed("ours-core", folder, num, repeats)
    scopes = (("context features and day files included", whole), ("the peers' work only", core))
    for scope, run in scopes:
        yield Row(
            name=f"build_features, {millions} events, {scope}",
            value=run["rate"],
            unit="M events/s",
            goal=f">= {GOAL_SPEED:g}M events/s from Parquet",
            at_least=GOAL_SPEED,
        )
    yield Row(
        name=f"peak memory, {millions} events, everything included",
        value=whole["peak"] / num,
        unit="bytes/event",
        at_most=GOAL_BYTES,
    )
    if not large:
        return
    run = speed("ours-whole", dataset(root, large), large)
    yield Row(
        name=f"peak memory, {large / 1e6:g}M events against {millions}",
        value=run["peak"] / whole["peak"],
        unit="x",
        goal=f"flat when streaming (<= {GOAL_GROWTH:g}x)",
        at_most=GOAL_GROWTH,
    )
    yield Row(
        name=f"build_features, {large / 1e6:g}M events (one run)",
        value=run["rate"],
        unit="M events/s",
    )


def peer_rows(root: Path, name: str, num: int, python: str, repeats: int) -> Iterator[Row]:
    """Measure a peer and build_features on the same events."""
    data = dataset(root, num)
    if name == "recbole" and not data.with_name(data.name + "-recbole").exists():
        measured("recbole-table", data, num, sys.executable)
    peer = speed(name, data, num, python=python)
    ours = speed("ours-core", data, num, repeats)
    if name == "pandas" and peer["kept"] != ours["kept"]:
        raise ValueError(f"not the same work: pandas keeps {peer['kept']}, ours {ours['kept']}")
    yield Row(
        name=f"the same work on {num / 1e6:g}M events: build_features",
        value=ours["rate"],
        unit="M events/s",
        peer=f"{name} {peer['rate']:.3g}M events/s",
        ratio=ours["rate"] / peer["rate"],
    )
    yield Row(
        name=f"peak memory on {num / 1e6:g}M events: build_features",
        value=ours["peak"] / num,
        unit="bytes/event",
        peer=f"{name} {peer['peak'] / num:.0f} bytes/event",
        ratio=peer["peak"] / ours["peak"],
    )


def compare(arguments: argparse.Namespace) -> None:
    """Measure everything and write the table."""
    root, repeats = arguments.data, arguments.repeats
    rows = list(own_rows(root, arguments.events, arguments.large_events, repeats))
    rows += peer_rows(root, "pandas", arguments.pandas_events, sys.executable, repeats)
    if arguments.recbole_python:
        python = arguments.recbole_python
        rows += peer_rows(root, "recbole", arguments.recbole_events, python, repeats)
    notes = (
        f"Median of {repeats} runs (peers: one), each in a process of its own; peak memory is the "
        "largest of them and includes interpreter and libraries. Wall-clock from the first byte "
        "read to the last written, without catalogue tables. From 8M events on users and items are "
        "as many: memory grows with them, not with events. Peers were measured on fewer events "
        "than the goal's because they would take too long or too much memory at full size; "
        "RecBole reads its own text format, and drops no duplicates and checks no rows here, which "
        "is in its favour."
    )
    if not arguments.recbole_python:
        notes += " RecBole was not measured: no interpreter with it was given."
    write_results("preparation", rows, notes=notes)


if __name__ == "__main__":
    main()
