"""How long the page of serving takes over a request log: its first reading, then each change.

Lists of a week, written once into --folder and kept there; a page is made in this process, without
a browser. Goals: the page is there within a second while the log is being read, and each change
within 300 ms once it is.

    python -m tests.benchmarks.dashboard.benchmark_request_log --folder /tmp/request-log
"""

from __future__ import annotations

import json
import statistics
import time
import zlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.page import build
from pipelines.dashboard.service.request_log import request_log
from pipelines.dashboard.workspaces.stores import Places, Stores
from serving.metrics import STAGES
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord
from tests.benchmarks.harness import Row, command_line, write_results

WEEK_MS = 7 * 86_400_000
SOURCES = ("two_tower", "ease", "item_knn", "sequence", "content", "popular")
BUNDLES = ("v1", "v2", "v3")
LISTS_A_COMMIT = 20_000
CHANGES: tuple[Mapping[str, str], ...] = (
    {"range": "1h"},
    {"range": "24h", "stage": "rank"},
    {"range": "7d"},
    {"range": "all", "surface": "home"},
    {"range": "all", "step": "hour"},
    {"part": "experiments"},
)


def records(num_lists: int) -> Iterator[RequestRecord]:
    """Make lists of 20 items at random times of the week before now."""
    rng = np.random.default_rng(0)
    end = int(1_000 * time.time())
    for number, at_ms in enumerate(np.sort(end - rng.integers(0, WEEK_MS, num_lists)).tolist()):
        times = rng.lognormal(0.0, 0.5, len(STAGES)).round(3).tolist()
        request_id = f"{at_ms:012x}{rng.bytes(10).hex()}"
        document = {
            "request_id": request_id,
            "unix_ms": at_ms,
            "bundle": BUNDLES[3 * number // num_lists],
            "profile": "fast",
            "surface": ("home", "related", "search")[number % 3],
            "user_id": f"u{number % 50_000}",
            "request": {"user_id": f"u{number % 50_000}", "k": 20},
            "items": [
                {"item_id": str(rng.integers(100_000)), "score": 0.5, "source": SOURCES[slot % 6]}
                for slot in range(20)
            ],
            "degraded": ["late_source"] if number % 50 == 0 else [],
            "timings_ms": dict(zip(STAGES, times, strict=True)),
            "digest": "0" * 64,
            "configuration": "built-in",
            "unix_time": at_ms // 1_000,
        }
        if number % 4 == 0:
            document["experiment"] = {"name": "x", "arm": "ab"[number // 4 % 2]}
        yield RequestRecord(
            request_id, at_ms, str(document["user_id"]), json.dumps(document).encode()
        )


def write_log(workspace: Path, num_lists: int) -> None:
    workspace.mkdir(parents=True)
    (workspace / "config.toml").touch()
    (workspace / "lock").touch()
    store, some = SqliteStore(workspace / "online"), []
    for one in records(num_lists):
        some.append(one)
        if len(some) == LISTS_A_COMMIT:
            store.add_requests(some)
            some = []
    store.add_requests(some)
    store.close()


def milliseconds(context: Context, values: Mapping[str, str]) -> float:
    begin = time.perf_counter()
    page = build(context, Query.of(**values))
    assert page.blocks
    return 1_000 * (time.perf_counter() - begin)


def bytes_of_times() -> tuple[float, float]:
    """Size of a record in the store, without its times and with them."""
    with_times = [one.document for one in records(2_000)]
    without = []
    for document in with_times:
        kept = {name: one for name, one in json.loads(document).items() if name != "timings_ms"}
        without.append(json.dumps(kept).encode())
    return tuple(  # type: ignore[return-value]
        statistics.mean(len(zlib.compress(one, 1)) for one in documents)
        for documents in (without, with_times)
    )


def measure(options: Namespace) -> list[Row]:
    folder = Path(options.folder) / f"{options.lists}"
    if not folder.exists():
        write_log(folder / "shop", options.lists)
    context = Context(stores=Stores(Places(roots=[folder])))
    first = milliseconds(context, {})
    begin = time.perf_counter()
    logged = request_log(context, folder / "shop" / "online").now(600)
    reading = time.perf_counter() - begin
    assert logged.columns.lists.height == options.lists, logged.fault
    case = f"{options.lists:,} lists"
    rows = [
        Row(name=f"{case}: first page", value=first, unit="ms", at_most=1_000),
        Row(name=f"{case}: read whole, in the background", value=reading, unit="s"),
        Row(
            name=f"{case}: in memory",
            value=logged.columns.lists.estimated_size() / (1 << 20),
            unit="MiB",
        ),
    ]
    for change in CHANGES:
        what = ", ".join(f"{name} {value}" for name, value in change.items())
        took = []
        for _ in range(options.repeats):
            # Nothing that was made before is kept.
            fresh = Context(stores=context.stores)
            log = request_log(context, folder / "shop" / "online")
            fresh.cache.get(
                ("request log", str(folder / "shop" / "online")), (), lambda log=log: log
            )
            took.append(milliseconds(fresh, change))
        value = statistics.median(took)
        rows.append(Row(name=f"{case}: {what}", value=value, unit="ms", at_most=300))
    without, whole = bytes_of_times()
    rows.append(Row(name="a record of 20 items: without its times", value=without, unit="bytes"))
    rows.append(Row(name="a record of 20 items: with its times", value=whole, unit="bytes"))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", default="/tmp/request-log", help="where the log is kept")
    parser.add_argument("--lists", type=int, default=1_000_000, help="lists of the log")
    parser.add_argument("--repeats", type=int, default=5, help="times of each change")
    options = parser.parse_args()
    write_results("request_log", measure(options))


if __name__ == "__main__":
    main()
