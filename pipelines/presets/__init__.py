"""Whole configurations by name, each a function that returns a RunConfig."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.config.run import RunConfig
from pipelines.presets.amazon import amazon_beauty, amazon_sports, amazon_toys
from pipelines.presets.automatic import automatic
from pipelines.presets.movielens import movielens_1m, movielens_100k

PRESETS: dict[str, Callable[[], RunConfig]] = {
    "auto": automatic,
    "shop": automatic,
    "movielens_100k": movielens_100k,
    "movielens_1m": movielens_1m,
    "amazon_beauty": amazon_beauty,
    "amazon_sports": amazon_sports,
    "amazon_toys": amazon_toys,
}
