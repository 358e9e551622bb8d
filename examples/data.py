"""The data of the examples: small worlds, the same at every call.

    python -m examples.data news FOLDER      writes events.csv and, where there is one, items.csv

Movies are MovieLens-100K: recsys data fetch movielens-100k. Three shops are Amazon's Beauty, Sports
and Toys, from a mirror (RECSYS_DATA_MIRROR).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from tests.recsys.testing.world_text import DOMAINS, TOPICS
from tests.recsys.testing.worlds import WorldConfig, world

START = datetime(2026, 3, 2, tzinfo=UTC)
Files = dict[str, pl.DataFrame]


def written(moment: datetime) -> str:
    """Write a time as a shop's log would."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


def shop() -> Files:
    """Books, films and games of one shop: who likes gardens in books does not in films."""
    made = world(
        WorldConfig(seed=21, num_users=300, num_items=240, num_requests=9_000, num_domains=3)
    )
    events, catalogue, names = made.events, made.catalogue, list(DOMAINS)
    taken = pl.DataFrame(
        {
            "user_id": events.user_ids,
            "item_id": events.item_ids,
            "event_time": [written(datetime.fromtimestamp(time, UTC)) for time in events.times],
            "event_type": events.event_types,
        }
    )
    items = {
        "item_id": catalogue.item_ids,
        "title": catalogue.titles,
        "categories": ["|".join(one) for one in catalogue.categories],
        "price": catalogue.prices,
        "domain": [names[domain] for domain in made.domain_of_item.tolist()],
    }
    # Nobody takes a book twice: the first click counts.
    first = taken.filter(pl.col("event_type") == "click").unique(
        ["user_id", "item_id"], keep="first", maintain_order=True
    )
    return {"events": first, "items": pl.DataFrame(items)}


def news() -> Files:
    """Articles that are read on one day: 14 days of 24 articles, 400 readers of two topics each."""
    random = np.random.default_rng(22)
    topics = list(TOPICS)[:6]
    articles: list[dict[str, str]] = []
    for day in range(14):
        for number in range(24):
            topic = topics[number % len(topics)]
            words = random.permutation(TOPICS[topic])
            appeared = START + timedelta(days=day)
            articles.append(
                {
                    "item_id": f"article-{len(articles)}",
                    "title": f"{words[0].capitalize()} and {words[1]}, {appeared:%d %B}",
                    "categories": topic,
                    "available_from": written(appeared),
                }
            )
    rows = []
    for reader in range(400):
        liked = set(random.choice(len(topics), 2, replace=False).tolist())
        for day in range(14):
            # Everyone comes on the last day, so that it is what is measured.
            if day < 13 and random.random() < 0.6:
                continue
            weights = np.array([8.0 if n % len(topics) in liked else 1.0 for n in range(24)])
            weights /= np.arange(24) // len(topics) + 1
            read = random.choice(24, 4, replace=False, p=weights / weights.sum())
            for place, number in enumerate(read.tolist()):
                minutes = int(random.integers(0, 1200)) + place
                moment = START + timedelta(days=day, minutes=minutes)
                rows.append((f"reader-{reader}", f"article-{24 * day + number}", written(moment)))
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "event_time"], orient="row")
    return {"events": events.sort("event_time"), "items": pl.DataFrame(articles)}


def sessions() -> Files:
    """Visits without users: 1,500 of them, each along one of 20 paths through 200 pages."""
    random = np.random.default_rng(23)
    kinds = ["tent", "stove", "boots", "rope", "lamp", "map", "jacket", "axe", "flask", "pack"]
    pages = [f"{kinds[n % 10].capitalize()} {n // 10 + 1}" for n in range(200)]
    rows = []
    for visit in range(1_500):
        path, place = int(random.zipf(1.6)) % 20, int(random.integers(0, 6))
        moment = START + timedelta(minutes=7 * visit)
        for _ in range(int(random.integers(3, 8))):
            lost = random.random() < 0.15
            page = int(random.integers(0, 200)) if lost else 10 * path + place % 10
            rows.append((f"visit-{visit}", f"page-{page}", written(moment)))
            place += int(random.integers(1, 3))
            moment += timedelta(seconds=int(random.integers(5, 90)))
    events = pl.DataFrame(rows, schema=["session", "page", "clicked"], orient="row")
    items = pl.DataFrame({"page": [f"page-{n}" for n in range(200)], "title": pages})
    return {"events": events, "items": items}


FOOD = (
    "apples", "bananas", "bread", "butter", "carrots", "cereal", "cheese", "coffee", "cream",
    "eggs", "flour", "honey", "jam", "juice", "lentils", "milk", "mushrooms", "noodles", "oats",
    "oil", "olives", "onions", "pasta", "peas", "pepper", "potatoes", "rice", "salt", "soup",
    "spinach", "sugar", "tea", "tofu", "tomatoes", "vinegar", "yoghurt",
)  # fmt: skip


def groceries() -> Files:
    """Weekly baskets of 250 households: seven in ten products were in an earlier basket."""
    random = np.random.default_rng(24)
    products = [f"{kind} {food}" for food in FOOD for kind in ("Organic", "Plain", "Large pack of")]
    liked = 1 / (1 + random.permutation(len(products)))
    rows = []
    for household in range(250):
        staples = random.choice(len(products), 9, replace=False, p=liked / liked.sum())
        for week in range(8):
            if random.random() < 0.2:
                continue
            moment = START + timedelta(weeks=week, days=int(random.integers(0, 7)), hours=17)
            usual = random.choice(staples, 5, replace=False).tolist()
            other = random.choice(len(products), 2, replace=False).tolist()
            basket = random.permutation(list(dict.fromkeys(usual + other))).tolist()
            rows += [(f"home-{household}", f"sku-{one}", written(moment)) for one in basket]
    events = pl.DataFrame(rows, schema=["household", "sku", "paid_at"], orient="row")
    items = {"sku": [f"sku-{n}" for n in range(len(products))], "title": products}
    return {"events": events.sort("paid_at"), "items": pl.DataFrame(items)}


def ids_only() -> Files:
    """Events alone, of items that nothing is known of: 400 users of 8 tastes, 320 items."""
    random = np.random.default_rng(25)
    rows = []
    for user in range(400):
        moment = START + timedelta(minutes=int(random.integers(0, 40_000)))
        own = [item for item in range(320) if item % 8 == user % 8]
        weights = 1 / (1 + np.arange(len(own)))
        taken = random.choice(own, 9, replace=False, p=weights / weights.sum()).tolist()
        taken += random.choice(320, 2, replace=False).tolist()
        for item in random.permutation(list(dict.fromkeys(taken))).tolist():
            rows.append((f"u{user}", f"{7919 * item % 100_003:05d}", written(moment)))
            moment += timedelta(minutes=int(random.integers(1, 900)))
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "event_time"], orient="row")
    return {"events": events.sort("event_time")}


SHOPS = ("beauty", "sports", "toys")
OTHER_USERS = 3_000
"""Users of one shop that the example has beside all users of several."""
LEAST_EVENTS = 5
"""Events of an item in the example."""


def joined_shops() -> Files:
    """Join the logs of three shops, whose users have one id in all, with a column ``domain``.

    Toys has no times: a user's purchases there are spread over the time of those in other shops.
    So all logs have only an order.
    """
    tables = {shop: fetch(find_dataset(f"amazon-{shop}")) for shop in SHOPS}
    events, items = [], []
    for shop, fetched in tables.items():
        log = pl.read_parquet(fetched.directory / "events.parquet")
        time = pl.col("event_time").dt.epoch("s") if "event_time" in log.columns else pl.lit(None)
        place = (pl.col("sequence_index") + 0.5) / pl.len().over("user_id")
        events.append(
            log.select("user_id", "item_id", time.cast(pl.Float64).alias("time"), place=place)
        )
        catalogue = pl.read_parquet(fetched.directory / "items.parquet")
        items.append(catalogue.select("item_id", "title", "categories", domain=pl.lit(shop)))
    first, last = (getattr(pl.col("time"), end)().over("user_id") for end in ("min", "max"))
    spread = (first + pl.col("place") * (last - first)).fill_null(0.0)
    moment = pl.col("time").fill_null(spread)
    log = pl.concat(events).sort("user_id", moment, "place", "item_id")
    index = pl.int_range(pl.len()).over("user_id")
    return {
        "events": log.select("user_id", "item_id", sequence_index=index),
        "items": pl.concat(items).unique("item_id", keep="first", maintain_order=True),
    }


def three_shops() -> Files:
    """Keep users of several of three shops, some of one, and items with five of their events."""
    whole = joined_shops()
    shop_of = whole["items"].select("item_id", "domain")
    shops = (
        whole["events"]
        .join(shop_of, on="item_id")
        .group_by("user_id")
        .agg(pl.col("domain").n_unique())
    )
    alone = shops.filter(pl.col("domain") == 1).sort("user_id").sample(OTHER_USERS, seed=26)
    users = pl.concat([shops.filter(pl.col("domain") > 1), alone])
    events = whole["events"].join(users.select("user_id"), on="user_id", how="semi")
    events = events.filter(pl.len().over("item_id") >= LEAST_EVENTS).sort(
        "user_id", "sequence_index"
    )
    items = whole["items"].join(events, on="item_id", how="semi")
    texts = pl.col("categories").list.join("|")
    return {"events": events, "items": items.with_columns(texts)}


WORLDS: dict[str, Callable[[], Files]] = {
    "shop": shop,
    "news": news,
    "sessions": sessions,
    "groceries": groceries,
    "ids-only": ids_only,
}
MIRRORED = {"three-shops": three_shops}
"""Made of public data sets that only a mirror has."""


def write(name: str, folder: Path) -> dict[str, int]:
    """Write an example's CSV files; return the rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = (WORLDS | MIRRORED)[name]()
    for table, rows in tables.items():
        rows.write_csv(folder / f"{table}.csv")
    return {table: rows.height for table, rows in tables.items()}


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in WORLDS | MIRRORED:
        sys.exit(f"usage: python -m examples.data {'|'.join(WORLDS | MIRRORED)} FOLDER")
    write(sys.argv[1], Path(sys.argv[2]))
