"""The catalogue: every retrieval model, one row each, in the order of `recsys.models.names`."""

from __future__ import annotations

from recsys.fitting.baselines import CONTENT, ITEM_TO_ITEM, POPULARITY
from recsys.fitting.generative import GENERATIVE
from recsys.fitting.item_weights import EASE, ITEM_KNN, NEXT_BASKET, REPEATS
from recsys.fitting.sequence import ENSEMBLE, SEQUENCE
from recsys.fitting.two_tower import TWO_TOWER

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
