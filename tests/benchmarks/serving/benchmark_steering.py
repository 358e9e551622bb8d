"""What steering does to lists, to held-out events and to the time of a list; how fast hides act.

Lists: MovieLens-100K, 100 users, each category of at least 30 films, "more" and "less" of it, top
20. Events: a planted shop; a third of the users turn to a category that they never chose, and say
so. Time: 100,000 made-up items, requests with and without a wish in turn. Hides: two workers under
200 lists a second; an event is sent, then the user's list is asked for on fresh connections until
four in a row lack the item.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.shop import Shop
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import list_ranks, per_user_metric
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from serving.schemas import Request
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.client import messages, open_loop
from tests.benchmarks.serving.server import reply_of, serving
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

K, NUM_USERS = 20, 100
MIN_FILMS = 30
KINDS, PER_KIND = 12, 60
"""Categories of the planted shop, and items of each."""
NOTES = """Shares are means over users and categories. The planted users' taste is two categories by
Zipf's law within them; the events after the moment are as before, but half of those of users who
turn are of the new category. Users of the planted shop who say nothing are asked for twice, before
and after the wishes of others were kept, and their lists compared. Times are of one
process and thread."""


def shares(bundles: Path) -> list[Row]:
    """Share of a category's films among the first 20."""
    recommender = Recommender.load(bundles / "current")
    catalogue = recommender.bundle.catalogue
    rows = range(1, recommender.bundle.num_item_rows)
    of_row = {row: set(catalogue.categories_of(row)) for row in rows}
    names = [
        name
        for name in sorted(set().union(*of_row.values()))
        if sum(name in own for own in of_row.values()) >= MIN_FILMS
    ]
    users = list(recommender.bundle.users.user_ids)[1:]
    chosen = [users[n] for n in np.random.default_rng(0).choice(len(users), NUM_USERS, False)]

    def share(user: str, name: str, wish: str | None) -> float:
        reply = recommender.answer(Request(user_id=user, k=K, steer=wish))
        return float(np.mean([name in (item.categories or ()) for item in reply.items]))

    wishes = {way: lambda name, way=way: f"{way} {name}" for way in ("more", "less")}
    found = {way: [] for way in (*wishes, "plain")}
    for name in names:
        found["plain"].append(np.mean([share(user, name, None) for user in chosen]))
        for way, wish in wishes.items():
            found[way].append(np.mean([share(user, name, wish(name)) for user in chosen]))
    plain, more, less = (np.array(found[way]) for way in ("plain", "more", "less"))
    can, worst = plain <= 0.5, float((less / np.maximum(plain, 1e-3)).max())
    return [
        Row(
            name=f"more of a category, {can.sum()} of {len(names)} with at most half of the list",
            value=float(more[can].mean()),
            peer=f"without a wish {plain[can].mean():.3f}; least ratio "
            f"{(more[can] / plain[can]).min():.2f}",
            ratio=float(more[can].mean() / plain[can].mean()),
            min_ratio=2.0,
        ),
        Row(
            name=f"less of a category, {len(names)} categories",
            value=float(less.mean()),
            peer=f"without a wish {plain.mean():.3f}; greatest ratio {worst:.2f}",
            ratio=float(plain.mean() / max(less.mean(), 1e-9)),
            min_ratio=4.0,
        ),
    ]


def planted(seed: int) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, list[str]], dict[str, str]]:
    """Make a shop: events before the moment, items, later items by user, and the wishes."""
    rng, events, later, wishes = np.random.default_rng(seed), [], {}, {}
    popular = 1 / np.arange(1, PER_KIND + 1)

    def drawn(kind: int, number: int) -> list[str]:
        places = rng.choice(PER_KIND, number, replace=False, p=popular / popular.sum())
        return [f"i{kind}-{place}" for place in places]

    for user in range(1_500):
        first, second, third = rng.choice(KINDS, 3, replace=False)
        own = [*drawn(first, 8), *drawn(second, 6)]
        rng.shuffle(own)
        events += [(f"u{user}", item, 1_600_000_000 + 86_400 * n) for n, item in enumerate(own)]
        turns = user % 3 == 0
        fresh = [one for one in drawn(first, 12) if one not in own][:3]
        later[f"u{user}"] = [*drawn(third, 3), *fresh] if turns else fresh
        if turns:
            wishes[f"u{user}"] = f"more kind{third}"
    items = [
        (f"i{kind}-{n}", f"thing {kind} {n}", f"kind{kind}")
        for kind in range(KINDS)
        for n in range(PER_KIND)
    ]
    return (
        pl.DataFrame(events, ["user_id", "item_id", "event_time"], orient="row"),
        pl.DataFrame(items, ["item_id", "title", "categories"], orient="row"),
        later,
        wishes,
    )


def events_of_users(seed: int) -> list[Row]:
    """N@10 of the later events of users who turn, with and without their wish."""
    events, items, later, wishes = planted(seed)
    shop = Shop.fit(events, items, budget="45s")
    recommender = Recommender.load(shop.bundle)

    row_of = recommender.bundle.catalogue.row_of
    targets = [[row_of(item_id) for item_id in later[user]] for user in wishes]
    offsets = torch.tensor([0, *map(len, targets)]).cumsum(0)
    jagged = Jagged(torch.tensor([row for rows in targets for row in rows]), offsets)

    def gain(wanted: dict[str, str | None]) -> float:
        rows = torch.zeros(len(wanted), 10, dtype=torch.int64)
        for list_rows, (user, wish) in zip(rows, wanted.items(), strict=True):
            reply = recommender.answer(Request(user_id=user, k=10, steer=wish))
            found = [row_of(item.item_id) for item in reply.items]
            list_rows[: len(found)] = torch.tensor(found)
        return float(per_user_metric(list_ranks(rows, jagged), "ndcg@10").mean())

    before, after = gain(dict.fromkeys(wishes)), gain(wishes)
    others = [user for user in later if user not in wishes]

    def listed(user: str) -> list[str]:
        return [item.item_id for item in recommender.answer(Request(user_id=user, k=10)).items]

    first = [listed(user) for user in others[:200]]
    for user, wish in wishes.items():
        recommender.answer(Request(user_id=user, k=10, steer=wish))
    same = np.mean([listed(user) == one for user, one in zip(others, first, strict=False)])
    return [
        Row(
            name=f"users who turn and say so, seed {seed}: N@10",
            value=after,
            peer=f"without their wish {before:.4f}; lists of others unchanged {same:.0%}",
            ratio=after / before,
            min_ratio=1.2,
        )
    ]


def cost(seconds: float) -> list[Row]:
    """Time of a list of 100,000 items with a wish, over one without."""
    torch.set_num_threads(1)
    size = SyntheticSize(
        num_items=100_000, num_users=500, embedding_dim=64, content_dim=64, cluster_items=200
    )
    with tempfile.TemporaryDirectory() as folder:
        write_synthetic_bundle(Path(folder), "v1", size)
        publish(Path(folder), "v1")
        recommender = Recommender.load(Path(folder) / "current")
    took: dict[str | None, list[float]] = {None: [], "more evens, less odd": []}
    users, end, number = list(recommender.bundle.users.user_ids)[1:], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        for wish, times in took.items():
            request = Request(user_id=users[number % len(users)], k=K, steer=wish)
            begin = time.perf_counter()
            recommender.answer(request)
            times.append(1e3 * (time.perf_counter() - begin))
    plain, steered = (np.percentile(times[20:], 99) for times in took.values())
    return [
        Row(
            name=f"100,000 items, a wish of two parts, {number:,} lists: more at p99",
            value=float(steered - plain),
            unit="ms",
            peer=f"a list without {plain:.2f} ms, with {steered:.2f} ms at p99",
            at_most=5.0,
        )
    ]


def hides(bundles: Path, number: int, rate: float) -> list[Row]:
    """Time from the reply to a hide until no worker lists the item."""
    with tempfile.TemporaryDirectory() as folder:
        store = {"RECSYS_STORE": f"sqlite:{folder}", "RECSYS_WORKERS": "2"}
        with serving(bundles, **store) as server:
            bodies = [f'{{"user_id": "{user}", "k": 20}}'.encode() for user in range(400, 900)]
            load = threading.Thread(
                target=lambda: asyncio.run(
                    open_loop(server.port, messages(bodies), rate, 0.25 * number + 5)
                )
            )
            load.start()
            time.sleep(2)
            took = [gone_after(server.port, str(user)) for user in range(1, number + 1)]
            load.join()
    return [
        Row(
            name=f"{number} hides, two workers, {rate:.0f} lists a second: gone at p99",
            value=float(np.percentile(took, 99)),
            unit="ms",
            peer=f"median {np.median(took):.1f} ms, most {max(took):.1f} ms; it counts the lists "
            "asked for until four in a row lack the item",
            at_most=50.0,
        )
    ]


def gone_after(port: int, user: str) -> float:
    """Hide the first item of a user's list; return the ms until the first of four that lack it."""
    body = {"user_id": user, "k": 20}
    item = reply_of(port, "/v1/recommend", body)["items"][0]["item_id"]
    event = {"event_id": f"no-{user}", "user_id": user, "item_id": item, "event_type": "hide"}
    begin, gone, lacking = time.perf_counter(), 0.0, 0
    assert reply_of(port, "/v1/events", {"events": [event]}) is not None
    while lacking < 4:
        found = [one["item_id"] for one in reply_of(port, "/v1/recommend", body)["items"]]
        passed = 1e3 * (time.perf_counter() - begin)
        assert passed < 5_000, f"{item} is still listed"
        lacking = 0 if item in found else lacking + 1
        gone = passed if lacking == 1 else gone
    return gone


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument("--hides", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the lists that are timed")
    options = parser.parse_args()
    rows = shares(options.bundles)
    for seed in range(3):
        rows += events_of_users(seed)
    rows += cost(options.seconds)
    rows += hides(options.bundles, options.hides, 200.0)
    write_results("steering", rows, notes=NOTES)


if __name__ == "__main__":
    main()
