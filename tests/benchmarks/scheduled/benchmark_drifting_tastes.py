"""Which policy of training keeps up with tastes that drift, and what it costs where none do.

Two synthetic worlds of 60 days are equal but for what their eight groups of users like: in one a
group replaces each of its liked items once on average, in the other it keeps them. `recsys
backtest` replays the second half of each in ten steps.

    python -m tests.benchmarks.scheduled.benchmark_drifting_tastes
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from typer.testing import CliRunner

from pipelines.cli.main import app
from tests.benchmarks.harness import Row, command_line, write_results

SETTINGS = """
preset = "shop"
auto.enabled = false
device = "cpu"
[data]
events = "events.csv"
[content]
encoder = "none"
[two_tower_training]
enabled = false
[sequence]
embedding_dim = 16
hidden_dim = 32
max_length = 20
backend = "torch"
[sequence_training]
enabled = true
batch_size = 64
max_epochs = 10.0
[tracking]
enabled = false
[backtest]
num_steps = 10
"""
WORLDS = {"tastes drift": 1.0, "tastes stay": 0.0}
SERVED = "served"
DAY, START = 86_400, 1_704_067_200
NUM_DAYS, NUM_USERS, NUM_ITEMS, NUM_GROUPS = 60, 1_000, 400, 8
NUM_LIKED = 20
"""Items that a group likes at a time."""
LIKED_SHARE = 0.7
"""Of the events; the others are on any item."""
ALL, LATE = range(1, 11), range(8, 11)
"""Steps, from 1."""


def write_shop(folder: Path, drift: float, num_events: int, seed: int) -> Path:
    """Write a world's events and the settings; return the TOML."""
    rng = np.random.default_rng(seed)
    days = np.sort(rng.integers(0, NUM_DAYS, num_events))
    users = rng.integers(0, NUM_USERS, num_events)
    liked = np.stack([rng.permutation(NUM_ITEMS)[:NUM_LIKED] for _ in range(NUM_GROUPS)])
    items = rng.integers(0, NUM_ITEMS, num_events)
    for day in range(NUM_DAYS):
        changed = rng.random(liked.shape) < drift / NUM_DAYS
        other = rng.integers(0, NUM_ITEMS, liked.shape)
        liked = np.where(changed, other, liked)
        own = np.flatnonzero((days == day) & (rng.random(num_events) < LIKED_SHARE))
        items[own] = liked[users[own] % NUM_GROUPS, rng.integers(0, NUM_LIKED, len(own))]
    times = START + days * DAY + rng.integers(0, DAY, num_events)
    folder.mkdir(parents=True)
    ids = {
        "user_id": [f"u{one}" for one in users.tolist()],
        "item_id": [f"i{one}" for one in items.tolist()],
    }
    pl.DataFrame({**ids, "event_time": times}).write_csv(folder / "events.csv")
    (folder / "shop.toml").write_text(SETTINGS)
    return folder / "shop.toml"


def replayed(config: Path) -> dict[str, Any]:
    """Replay a shop's past; return the document."""
    command = ["backtest", "-c", str(config), "-w", str(config.parent / "run"), "-q", "--json"]
    result = CliRunner().invoke(app, command)
    if result.exit_code:
        raise SystemExit(result.output)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def means_of(documents: list[dict[str, Any]], policy: str, steps: range) -> float:
    """Mean NDCG@10 of the served list over the queries of some steps of all seeds."""
    total, num = 0.0, 0
    for document in documents:
        queries = {one["number"]: one["num_queries"] for one in document["steps"]}
        for row in document["rows"]:
            if (row["policy"], row["row"]) == (policy, SERVED) and row["step"] in steps:
                total += row["metrics"]["ndcg@10"] * queries[row["step"]]
                num += queries[row["step"]]
    return total / num


def seconds_of(documents: list[dict[str, Any]], policy: str) -> float:
    """Seconds of all fits of a policy."""
    rows = [row for one in documents for row in one["summary"] if row["policy"] == policy]
    return float(sum(row["fit_seconds"] for row in rows))


def rows_of(case: str, documents: list[dict[str, Any]]) -> Iterator[Row]:
    """Take what each policy earned, and what of full retraining it keeps."""
    full = means_of(documents, "full", ALL)
    yield Row(name=f"{case}, full: NDCG@10", value=full)
    for policy in ("incremental", "never"):
        late = means_of(documents, policy, LATE) / means_of(documents, "full", LATE)
        value = means_of(documents, policy, ALL)
        seconds = seconds_of(documents, policy) / seconds_of(documents, "full")
        yield Row(name=f"{case}, {policy}: NDCG@10", value=value)
        yield Row(name=f"{case}, {policy}: against full", value=100 * (value / full - 1), unit="%")
        name = f"{case}, {policy}: against full, last {len(LATE)} steps"
        yield Row(name=name, value=100 * (late - 1), unit="%")
        yield Row(name=f"{case}, {policy}: cost of full's", value=100 * seconds, unit="%")


def main() -> None:
    """Measure and write the result."""
    parser = command_line(__doc__)
    parser.add_argument("--events", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows: list[Row] = []
    for case, drift in WORLDS.items():
        documents = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as name:
                config = write_shop(Path(name) / "shop", drift, options.events, seed)
                documents.append(replayed(config))
        rows += rows_of(case, documents)
    notes = (
        f"{options.seeds} seeds of each world, {options.events:,} events of {NUM_USERS:,} users."
    )
    write_results("drifting_tastes", rows, notes=notes)


if __name__ == "__main__":
    main()
