"""Whole configurations by name, each a function that returns a RunConfig."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.config.run import RunConfig
from pipelines.presets.amazon import amazon_beauty, amazon_sports, amazon_toys
from pipelines.presets.movielens import movielens_1m, movielens_100k
from pipelines.presets.shop import shop

PRESETS: dict[str, Callable[[], RunConfig]] = {
    "shop": shop,
    "movielens_100k": movielens_100k,
    "movielens_1m": movielens_1m,
    "amazon_beauty": amazon_beauty,
    "amazon_sports": amazon_sports,
    "amazon_toys": amazon_toys,
}
