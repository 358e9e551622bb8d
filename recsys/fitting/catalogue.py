"""The catalogue: every retrieval model, one row each, in the order of `recsys.models.names`."""

from __future__ import annotations

from collections.abc import Mapping

from recsys.fitting.counted import (
    CONTENT,
    EASE,
    ITEM_KNN,
    ITEM_TO_ITEM,
    NEXT_BASKET,
    POPULARITY,
    REPEATS,
)
from recsys.fitting.generative import GENERATIVE
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
SPECS = {spec.name: spec for spec in CATALOGUE}


def catalogue_with(outside: Mapping[str, str]) -> tuple[ModelSpec, ...]:
    """List the rows with those of other packages, by name and address."""
    return (*CATALOGUE, *(spec_at(name, address) for name, address in outside.items()))
