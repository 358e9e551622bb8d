"""The run, model and list length that the page of items is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import SPLITS, Answers, Split, answers, served_model
from pipelines.dashboard.data.items import Catalogue, catalogue_of
from pipelines.dashboard.data.sides import one_run
from pipelines.dashboard.items.exposure import LISTED, Exposure, exposure_of
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run

MISSING = (
    "No run here keeps lists by user. Run one whole: recsys run shop.toml; then start the "
    "dashboard with --root at its folder."
)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page is about."""

    run: Run
    split: Split
    found: Answers
    features: Path
    catalogue: Catalogue
    model: str
    k: int

    def exposure(self, context: Context, model: str) -> Exposure:
        """Count a model's lists."""
        events = self.catalogue.num_events
        return exposure_of(context, self.run, self.found, model, self.k, events)

    @property
    def models(self) -> list[str]:
        """The chosen model, then others, those whose lists are served before their members."""
        others = [name for name in reversed(self.found.models) if name != self.model]
        return [self.model, *others]


def keeps_lists(run: Run, split: Split = "test") -> bool:
    """Whether a run keeps lists by user."""
    try:
        return answers(run, split).features is not None
    except NotFoundError:
        return False


def shown_of(context: Context, query: Query) -> Shown:
    """Read what the page is about.

    Raises:
        NotFoundError: No run keeps lists.
        QueryError: A parameter cannot be.
    """
    split: Split = "validation" if query.choice("split", SPLITS, "test") == "validation" else "test"
    run = one_run(context, query, lambda one: keeps_lists(one, split), MISSING)
    found = answers(run, split)
    if found.features is None:
        raise NotFoundError(
            f"{run.name} keeps ranks and no lists; choose the workspace that released it"
        )
    return Shown(
        run=run,
        split=split,
        found=found,
        features=found.features,
        catalogue=catalogue_of(context, found.features),
        model=query.choice("model", found.models, served_model(run, found.models)),
        k=query.number("k", 10, least=1, most=LISTED),
    )
