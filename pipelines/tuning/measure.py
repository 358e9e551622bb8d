"""Measure one row of the metrics, fitted on train, on the validation events."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric
from recsys.fitting.catalogue import SPECS
from recsys.fitting.queries import rank_queries
from recsys.fitting.source_lists import SourceLists, known_demand
from recsys.replay.experiment import RecipeFitter, lists_of_source


def measure(fitter: RecipeFitter, row: str, metric: str) -> NDArray[np.float64]:
    """Measure every validation query, [Q]; NaN without a target.

    Args:
        row: Model that is measured; the blend of all if it is none of the recipe's.
    """
    recipe, device, seed = fitter.recipe, fitter.device, fitter.seed
    queries = fitter.queries("validation")
    if row in recipe.models:
        ranks = rank_queries(fitter.fit(SPECS[row]).source, queries, device).ranks
        return per_user_metric(Jagged(ranks, queries.targets().offsets), metric).numpy()
    lists = {
        name: lists_of_source(fitter.fit(SPECS[name]).source, queries, device)
        for name in recipe.models
    }
    counts, demand = fitter.inputs.item_counts("train"), known_demand(fitter.inputs, "train")
    examples = SourceLists.of_queries(lists, queries, counts, seed, demand)
    drawn = torch.from_numpy(queries.held_out.drawn(recipe.blend.max_queries, seed))
    blend = recipe.fitted_blend(examples, drawn, device).blend
    return blend.measured(examples, metric, by_half=True, device=device).numpy()
