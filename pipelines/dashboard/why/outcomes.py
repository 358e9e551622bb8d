"""Outcomes of two models on the same queries, and steps on which items are lost.

Axes: M queries, S sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import (
    DEPTH,
    SERVED,
    Joined,
    Side,
    answers,
    has_ranks,
)
from pipelines.dashboard.data.paired import Pairs, join_pairs
from pipelines.dashboard.data.sides import (
    NO_PAIR,
    choose_sides,
    one_run,
    origins,
    pair_parameters,
    side_name,
)
from pipelines.dashboard.query import Query
from pipelines.evaluation.per_user import RANK
from pipelines.pages.charts import NOBODY, SHARED, color_of
from pipelines.pages.document import Origin, Parameters
from recsys.models.names import SLOW_MODELS

OUTCOMES = ("both", "first", "second", "neither")
LISTED = 20
"""Places of a list that are kept, so a k beyond has no lists."""
Codes = NDArray[np.int8]
COMBINED = (BLEND, BLEND_FAST, RANKED, SERVED)
"""Lists that are made of other lists."""
STEPS = {
    "no source finds it": "in no source's first {depth}: other sources or data could help",
    "every source ranks it low": "in a source's first {depth}, in none's first {k}: better sources "
    "could help",
    "the blend drops it": "in a source's first {k}, not in the blend's: other weights could help",
    "the ranker drops it": "in the blend's first {k}, not after the ranker",
}
"""Steps of loss, and what each means."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Two models on the same queries."""

    pairs: Pairs
    sides: Sequence[Side]
    names: tuple[str, str]
    k: int
    outcomes: Codes
    """Position of each query's outcome in `OUTCOMES`, [M]."""

    @property
    def features(self) -> Path | None:
        """Folder of build_features."""
        return self.pairs.known.features

    @property
    def labels(self) -> dict[str, str]:
        """Label of each outcome."""
        labels = ("both find it", *(f"only {name}" for name in self.names), "neither")
        return dict(zip(OUTCOMES, labels, strict=True))

    @property
    def colors(self) -> dict[str, str]:
        """Colour of each outcome, by its label."""
        colors = (SHARED, color_of(0), color_of(1), NOBODY)
        return dict(zip(self.labels.values(), colors, strict=True))

    @property
    def origins(self) -> list[Origin]:
        return origins(self.sides)

    @property
    def parameters(self) -> Parameters:
        """Parameters that keep the page's sides."""
        return {"k": str(self.k), **pair_parameters(*self.sides)}


def read_contest(context: Context, query: Query) -> Contest:
    """Read what the page is about."""
    if not any(query.text(name) for name in ("runs", "run")):
        # A workspace keeps every model's list, a bundle its own ranks alone.
        newest = one_run(context, query, lambda run: has_ranks(run, 2), NO_PAIR)
        query = Query({**query.values, "run": (newest.key,)})
    sides = choose_sides(context, query, at_most=2)
    pairs = join_pairs(context, sides)
    k = query.number("k", 10, least=1, most=LISTED)
    first, second = ((ranks > 0) & (ranks <= k) for ranks in pairs.known.ranks[:2])
    outcomes = np.select([first & second, first, second], [0, 1, 2], default=3).astype(np.int8)
    return Contest(
        pairs=pairs,
        sides=sides,
        names=(side_name(sides[0], sides), side_name(sides[1], sides)),
        k=k,
        outcomes=outcomes,
    )


def gain(known: Joined) -> NDArray[np.float32]:
    """Compute the second side's gain by the discount of NDCG@100, [M]."""
    ranks = np.arange(DEPTH + 1, dtype=np.float32)
    worth = np.concatenate([[0], 1 / np.log2(1 + ranks[1:])]).astype(np.float32)
    found: NDArray[np.float32] = worth[known.ranks[1]] - worth[known.ranks[0]]
    return found


class LossStep(NamedTuple):
    """A step on which held-out items are lost."""

    words: str
    queries: int
    meaning: str


def lost_where(context: Context, side: Side, k: int) -> list[LossStep]:
    """Count on which step a combined list loses the items that it misses.

    Returns:
        Nothing if the list is of one model, so that there are no sources to look at.
    """
    found = answers(side.run)
    sources = [name for name in found.models if name not in COMBINED]
    if side.model not in COMBINED or not sources or found.features is None:
        return []
    if side.model in (BLEND_FAST, RANKED):
        sources = [name for name in sources if name not in SLOW_MODELS]
    blend = BLEND_FAST if side.model == RANKED and BLEND_FAST in found.models else None

    def count() -> list[LossStep]:
        best = pl.min_horizontal(_rank(name) for name in sources)
        kept = (_rank(blend) <= k) if blend else pl.lit(value=False)
        step = pl.when(kept).then(3).when(best <= k).then(2).when(best <= DEPTH).then(1)
        missed = pl.scan_parquet(found.table).filter(_rank(side.model) > k)
        frame = missed.group_by(step.otherwise(0).alias("step")).len().collect()
        counts = dict(frame.iter_rows())
        return [
            LossStep(words, int(counts.get(place, 0)), meaning.format(k=k, depth=DEPTH))
            for place, (words, meaning) in enumerate(STEPS.items())
            if place < 3 or blend
        ]

    return context.cache.get(("lost", side.run.key, side.model, k), found.files, count)


def _rank(model: str) -> pl.Expr:
    return pl.col(f"{RANK}{model}").fill_null(1 << 40)
