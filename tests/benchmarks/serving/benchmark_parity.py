"""Serve 10,100 lists over HTTP while events arrive, then compute each one to the last bit.

A server of two workers answers from a bundle, by default the demo's: surfaces with rules,
filters, exploration, an experiment and pages, users known and unknown, sessions, related items.
Meanwhile events of the same users are posted, some of a while ago, and an item is hidden. Then
`recsys parity` reads the store; records hold their features at the share that is the default. What
a record costs is timed in process, with features and without.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from pipelines.inputs.opened_store import opened
from pipelines.parity.log import log_of_store
from pipelines.parity.run import ParityReport, check_parity
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.benchmarks.harness import Row, alternating_ms, command_line, write_results
from tests.benchmarks.serving.server import reply_of, serving

CONFIGURATION = """
[surfaces.home]
diversity = {{method = "mmr", strength = 0.2}}

[surfaces.draws]
kind = "home"
exploration = {{method = "plackett_luce", temperature = 0.3}}

[surfaces.fresh]
kind = "home"
not_shown_within = "1h"
k = 5

[[rules]]
name = "first"
kind = "pin"
items = ["{pinned}"]
slot = 2

[[experiments]]
name = "more"
surfaces = ["home", "draws"]
arms = [
  {{name = "control"}},
  {{name = "varied", overrides = {{diversity = {{strength = 0.8}}}}}},
  {{name = "bold", overrides = {{exploration = {{method = "epsilon", epsilon = 0.3}}}}}},
]
"""


class Visitors:
    """What visitors of one thread request and do."""

    def __init__(self, recommender: Recommender, seed: int) -> None:
        bundle = recommender.bundle
        self._drawn = random.Random(seed)
        self._items = list(bundle.catalogue.item_ids)[1:]
        self._users = [*list(bundle.users.user_ids)[1:161], *(f"new-{i}" for i in range(40))]
        self._categories = list(bundle.catalogue.category_names)[1:]
        self._seed, self._number = seed, 0

    def items(self, number: int) -> list[str]:
        return self._drawn.sample(self._items, number)

    def request(self) -> dict[str, object]:
        drawn = self._drawn
        kinds: list[dict[str, object]] = [
            {"surface": "home"},
            {"surface": "home", "k": 40},
            {"surface": "draws", "k": 10},
            {"surface": "fresh"},
            {"surface": "home", "cursor": "start"},
            {"surface": "home", "session": self.items(3)},
            {"surface": "home", "exclude": self.items(20), "explain": True},
            {"surface": "home", "filter": {"categories": drawn.sample(self._categories, 2)}},
            {"surface": "cart", "session": self.items(2)},
        ]
        if drawn.random() < 0.1:
            return {"surface": "related", "item_id": drawn.choice(self._items)}
        found = drawn.choice(kinds)
        return {**found, "user_id": drawn.choice(self._users)} if drawn.random() < 0.95 else found

    def event(self) -> dict[str, object]:
        drawn, self._number = self._drawn, self._number + 1
        event: dict[str, object] = {
            "event_id": f"{self._seed}-{self._number}",
            "user_id": drawn.choice(self._users),
            "item_id": drawn.choice(self._items),
            "event_type": drawn.choice(["click", "view", "purchase", "impression"]),
        }
        if drawn.random() < 0.2:
            event["unix_time"] = time.time() - drawn.randrange(86_400)
        return event


def send(port: int, visitors: Visitors, number: int) -> int:
    """Request lists, and the second page of those that have one; counts those without a list."""
    refused = sent = 0
    while sent < number:
        body = visitors.request()
        reply = reply_of(port, "/v1/recommend", body)
        sent += 1
        if reply is None:
            refused += 1
        elif "cursor" in reply and sent < number:
            body["cursor"] = reply["cursor"]
            refused += reply_of(port, "/v1/recommend", body) is None
            sent += 1
    return refused


def post(port: int, visitors: Visitors, stop: threading.Event) -> int:
    """Post events until it is stopped; gives how many."""
    number = 0
    while not stop.is_set():
        number += reply_of(port, "/v1/events", {"events": [visitors.event()]}) is not None
        stop.wait(0.001)
    return number


def served(
    folder: Path, bundles: Path, recommender: Recommender, number: int
) -> tuple[int, int, Path]:
    """Serve lists from a server; gives the refused ones, the events and the configuration."""
    config = folder / "serving.toml"
    pinned = recommender.bundle.catalogue.item_ids[7]
    config.write_text(CONFIGURATION.format(pinned=pinned))
    stop = threading.Event()
    settings = {
        "RECSYS_STORE": f"sqlite:{folder / 'online'}",
        "RECSYS_CONFIG": str(config),
        "RECSYS_WORKERS": "2",
        "RECSYS_ALLOW_ADMIN": "true",
        "RECSYS_QUEUE_MS": "5000",
    }
    with serving(bundles, **settings) as server, ThreadPoolExecutor(4) as pool:
        events = pool.submit(post, server.port, Visitors(recommender, 99), stop)
        for part in range(2):
            share = number // 2 if part else number - number // 2
            each = [share // 3, share // 3, share - 2 * (share // 3)]
            refused = list(
                pool.map(
                    lambda pair: send(server.port, Visitors(recommender, pair[0]), pair[1]),
                    [(3 * part + place, count) for place, count in enumerate(each)],
                )
            )
            hidden = {"item_id": recommender.bundle.catalogue.item_ids[3], "hidden": True}
            reply_of(server.port, "/v1/items", {"items": [hidden]})
        stop.set()
        return sum(refused), events.result(), config


def costs(recommender: Recommender, seconds: float) -> list[Row]:
    """Time what a record takes and count its bytes, with features and without."""
    users = list(recommender.bundle.users.user_ids)[1:201]
    both = {
        name: Recommender(recommender.bundle, ServingOptions(log_features_share=share))
        for name, share in (("without features", 0.0), ("with features", 1.0))
    }
    made = {
        name: [one.make(Request(user_id=user, k=20)) for user in users]
        for name, one in both.items()
    }
    times = alternating_ms(
        {name: lambda name=name: [both[name].record(one) for one in made[name]] for name in both},
        seconds=seconds,
    )
    rows = []
    for name, one in both.items():
        sizes = [len(zlib.compress(one.record(each), 1)) for each in made[name]]
        rows += [
            Row(name=f"a record {name}: time", value=times[name] / len(users), unit="ms"),
            Row(name=f"a record {name}: kept", value=sum(sizes) / len(users), unit="bytes"),
        ]
    return rows


def found_rows(report: ParityReport, number: int, refused: int, events: int) -> list[Row]:
    return [
        Row(name="lists that were served", value=number - refused),
        Row(name="events that arrived meanwhile", value=events),
        Row(name="lists computed once more", value=report.recomputed),
        Row(name="lists that are bit-equal", value=report.equal, at_least=report.recomputed),
        Row(name="kinds of difference", value=len(report.differences), at_most=0),
        Row(name="lists that cannot be recomputed", value=sum(report.skipped.values())),
        Row(name="lists with features in their records", value=report.with_features),
        Row(name="lists with events on their way", value=report.on_their_way),
        Row(name="the check", value=report.seconds, unit="s"),
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument("--lists", type=int, default=10_100)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recommender = Recommender.load(options.bundles / "current")
    folder = Path(tempfile.mkdtemp())
    try:
        refused, events, config = served(folder, options.bundles, recommender, options.lists)
        with opened(f"sqlite:{folder / 'online'}") as store:
            log = log_of_store(store, options.lists)
        report = check_parity(log, options.bundles, configurations=[config])
    finally:
        shutil.rmtree(folder)
    print(report.to_json())
    rows = found_rows(report, options.lists, refused, events) + costs(recommender, options.seconds)
    skipped = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items()) or "none"
    load = f"{os.getloadavg()[0]:.1f}"
    write_results(
        "parity", rows, notes=f"Not recomputed: {skipped}. Load average {load} (other work ran)."
    )


if __name__ == "__main__":
    main()
