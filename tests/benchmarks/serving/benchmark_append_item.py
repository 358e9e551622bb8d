"""Seconds from ``recsys release append`` to the first reply of a running server that has the item.

The server runs in a process of its own and gets no message: it sees that ``current`` moved.
The command starts cold: Python, the encoder, the bundle, the item's text (not in any cache), the
delta, its publication. Then every list that should hold the item is requested over HTTP.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.server import TIMEOUT_SECONDS, reply_of, serving

RECSYS = [sys.executable, "-m", "pipelines.cli.main"]
NEW_ITEM = {
    "item_id": "phantom",
    "title": "Star Wars: Episode I - The Phantom Menace (1999)",
    "categories": "Action|Adventure|Fantasy|Sci-Fi",
}
LIKE = ["50", "181"]
"""Star Wars and Return of the Jedi: the session of a visitor whose list is requested."""


def place_in(reply: Any, item_id: str) -> int:
    """Place of an item in a list from 1, 0 where it is not."""
    ids = [item["item_id"] for item in reply["items"]]
    return ids.index(item_id) + 1 if item_id in ids else 0


def nearest_list(port: int) -> Any:
    """Items similar to the one that the new item is most similar to; none where it is unknown."""
    similar = reply_of(port, f"/v1/similar/{NEW_ITEM['item_id']}?k=1")
    if similar is None:
        return {"items": []}
    return reply_of(port, f"/v1/similar/{quote(similar['items'][0]['item_id'])}?k=100")


def append_once(bundles: Path, port: int, folder: Path) -> dict[str, float]:
    """Append the item while the server replies; return seconds by event."""
    path = folder / "new.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, NEW_ITEM)
        writer.writeheader()
        writer.writerow(NEW_ITEM)
    environment = {**os.environ, "RECSYS_DATA_CACHE": str(folder / "cache")}
    began = time.time()
    command = [*RECSYS, "append-items", str(path), "--bundle", str(bundles)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while not place_in(nearest_list(port), NEW_ITEM["item_id"]):
        if time.time() - began > TIMEOUT_SECONDS:
            raise RuntimeError("the new item did not appear; see the command's output above")
        # Seldom enough not to take the cores that the command works on.
        time.sleep(0.1)
    served = time.time()
    published = (bundles / "current").lstat().st_mtime
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError("append-items failed; see its output above")
    return {
        "total": served - began,
        "write": published - began,
        "swap": served - published,
        "cpu": used.ru_utime + used.ru_stime,
    }


def who_finds_it(port: int) -> dict[str, int]:
    """Place of the new item in each list that should have it."""
    item_id = NEW_ITEM["item_id"]
    visit = {"session": LIKE, "k": 100}
    similar = reply_of(port, f"/v1/similar/{item_id}?k=100")
    return {
        "among the similar to its nearest item": place_in(nearest_list(port), item_id),
        "among the similar to Star Wars": place_in(
            reply_of(port, f"/v1/similar/{LIKE[0]}?k=100"), item_id
        ),
        "Star Wars among the similar to it": place_in(similar, LIKE[0]),
        "for a visitor who saw two of the series": place_in(
            reply_of(port, "/v1/recommend", visit), item_id
        ),
        "title search for 'phantom men'": place_in(
            reply_of(port, "/v1/search?q=phantom+men"), item_id
        ),
    }


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--bundles",
        type=Path,
        default=Path("runs/movielens-100k/bundles"),
        help="folder with the bundle of `make demo`; it is copied",
    )
    parser.add_argument("--runs", type=int, default=5, help="the medians of so many are reported")
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    version = (options.bundles / "current").resolve().name
    seconds: list[dict[str, float]] = []
    places: dict[str, int] = {}
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as name:
            bundles = Path(name) / "bundles"
            shutil.copytree(options.bundles, bundles, symlinks=True)
            with serving(bundles) as served:
                port = served.port
                seconds.append(append_once(bundles, port, Path(name)))
                places = who_finds_it(port)
    middle = {name: statistics.median(run[name] for run in seconds) for name in seconds[0]}
    rows = [
        Row(
            name="append-items to the first reply with the item",
            value=middle["total"],
            unit="s",
            at_most=10,
        ),
        Row(name="of which until the delta is published", value=middle["write"], unit="s"),
        Row(
            name="of which the swap, until a reply has it",
            value=middle["swap"],
            unit="s",
            at_most=2,
        ),
    ]
    rows.append(Row(name="processor time of the command", value=middle["cpu"], unit="s"))
    rows.append(Row(name="slowest of all runs", value=max(r["total"] for r in seconds), unit="s"))
    rows += [Row(name=f"place: {what}", value=place) for what, place in places.items()]
    notes = (
        f"{version}, {options.runs} runs, each with a server and caches of its own; medians. "
        f"{os.getloadavg()[0]:.1f} processes wanted the cores in the last minute, the benchmark's "
        "own included; where that is above the number of cores, time is waiting too. The "
        f"item is {NEW_ITEM['title']!r} with {NEW_ITEM['categories']}. Places count from 1, 0 is "
        "not in the list."
    )
    write_results("append_item", rows, notes=notes)


if __name__ == "__main__":
    main()
