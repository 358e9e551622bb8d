"""The catalogue: every retrieval model, one row each, in the order of `recsys.models.names`."""

from __future__ import annotations

from collections.abc import Mapping

from recsys.fitting.baselines import CONTENT, ITEM_TO_ITEM, POPULARITY
from recsys.fitting.generative import GENERATIVE
from recsys.fitting.item_weights import EASE, ITEM_KNN, NEXT_BASKET, REPEATS
from recsys.fitting.sequence import ENSEMBLE, SEQUENCE
from recsys.fitting.spec import ModelSpec
from recsys.fitting.two_tower import TWO_TOWER
from recsys.models.outside import spec_at

CATALOGUE = (
    POPULARITY,
    ITEM_TO_ITEM,
    EASE,
    ITEM_KNN,
    REPEATS,
    NEXT_BASKET,
    CONTENT,
    TWO_TOWER,
    SEQUENCE,
    ENSEMBLE,
    GENERATIVE,
)


def catalogue_with(outside: Mapping[str, str]) -> tuple[ModelSpec, ...]:
    """List the rows with those of other packages, by name and address.

    Raises:
        ValueError: One cannot be imported, or its name is taken.
    """
    return (*CATALOGUE, *(spec_at(name, address) for name, address in outside.items()))
