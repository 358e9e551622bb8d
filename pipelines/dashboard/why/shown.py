"""Two models on the same queries: what the page is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import SPLITS, Side, Split, answers
from pipelines.dashboard.data.paired import Pairs, pairs_of
from pipelines.dashboard.data.sides import NO_PAIR, name_of, one_run, sides_of
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.why.outcomes import Codes, outcome_of
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts.style import NOBODY, SHARED, color_of
from pipelines.pages.document import Origin, Parameters

LISTED = 20
"""Places of a list that are kept, so a k beyond has no lists."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page is about."""

    pairs: Pairs
    sides: Sequence[Side]
    names: tuple[str, str]
    split: Split
    k: int
    outcomes: Codes
    features: Path | None

    @property
    def labels(self) -> dict[str, str]:
        """Name of each outcome."""
        return {
            "both": "both find it",
            "first": f"only {self.names[0]}",
            "second": f"only {self.names[1]}",
            "neither": "neither",
        }

    @property
    def colors(self) -> dict[str, str]:
        """Colour of each outcome, by its name."""
        colors = (SHARED, color_of(0), color_of(1), NOBODY)
        return dict(zip(self.labels.values(), colors, strict=True))

    @property
    def origins(self) -> list[Origin]:
        return list({one.run.key: one.run.origin for one in self.sides}.values())

    @property
    def parameters(self) -> Parameters:
        """Those that keep the page's sides."""
        keys = tuple(one.run.key for one in self.sides)
        common: dict[str, str | tuple[str, ...]] = {"split": self.split, "k": str(self.k)}
        if keys[0] == keys[1]:
            first, second = (one.model for one in self.sides)
            return {**common, "run": keys[0], "first": first, "second": second}
        models = {f"model{place}": one.model for place, one in enumerate(self.sides, start=1)}
        return {**common, "runs": keys, **models}


def has_lists(run: Run, split: Split) -> bool:
    """Whether a run keeps ranks and lists of more than one model."""
    try:
        return len(answers(run, split).models) > 1
    except NotFoundError:
        return False


def shown_of(context: Context, query: Query) -> Shown:
    """Read what the page is about.

    Raises:
        NotFoundError: There are no two models with ranks by user.
        QueryError: A parameter cannot be.
    """
    split: Split = "validation" if query.choice("split", SPLITS, "test") == "validation" else "test"
    if not any(query.text(name) for name in ("runs", "run")):
        # A workspace keeps every model's list, a bundle its own ranks alone.
        newest = one_run(context, query, lambda run: has_lists(run, split), NO_PAIR)
        query = Query({**query.values, "run": (newest.key,)})
    sides = sides_of(context, query, split, at_most=2)
    pairs = pairs_of(context, sides, split)
    names = [name_of(one, sides) for one in sides]
    k = query.number("k", 10, least=1, most=LISTED)
    return Shown(
        pairs=pairs,
        sides=sides,
        names=(names[0], names[1]),
        split=split,
        k=k,
        outcomes=outcome_of(pairs.known, k),
        features=pairs.known.features,
    )
