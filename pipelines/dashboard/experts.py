"""The page of a run's experts and adapters: the ranker's mixture, and adapters of domains."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipelines.dashboard.adapters import NO_ADAPTERS, OUTCOMES, adapter_sections, list_places
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Block, Page, Section, Words, with_origins
from pipelines.pages.ranker import ranker_section, routing_section
from pipelines.pages.report_data import RANKER, Document, read_ranker, routings_of

TITLE = "Experts and adapters"
STAGE = "train_ranker"
NO_RANKER = (
    "No ranker was trained in this run. [ranker_training] enabled = true trains one, and "
    '[ranker] trunk = "sparse" gives it a mixture of experts; then recsys run.'
)
NO_MEASUREMENTS = (
    "A bundle holds no measurements of its ranker, and those of the run that made it are not here. "
    "Choose a run."
)


def has_ranker(run: Run) -> bool:
    """Return whether a run trained a ranker or adapted a domain."""
    if run.kind != "workspace":
        return False
    return any((run.path / STAGE).glob(f"*/{RANKER}")) or (run.path / OUTCOMES).exists()


def _read_ranker(context: Context, run: Run) -> tuple[Document, Path] | str:
    """Read a run's ranker and its build_features, or explain why there is none."""
    for place in list_places(context, run):
        stage = place / STAGE
        orders = sorted(path.parent.name for path in stage.glob(f"*/{RANKER}"))
        if not orders:
            continue
        try:
            ranker = read_ranker(stage, "given" if "given" in orders else orders[0])
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"The ranker's measurements cannot be read: {type(error).__name__}: {error}"
        if ranker is not None:
            return ranker, place / "build_features"
    return NO_MEASUREMENTS if run.kind == "bundle" else NO_RANKER


def _mixture_sections(ranker: Document, features: Path) -> list[Section]:
    """Show the trunks, and of each router its balance and what its experts are for."""
    if not ranker["trunks"]:
        words = Words(lines=[f"No ranker could be trained: {ranker['reason']}"], tone="note")
        return [Section(key="ranker", title="Ranker", blocks=[words])]
    routings = routings_of(ranker)
    rows = {one["item_row"] for routing in routings for own in routing["items"] for one in own}
    titles: dict[int, str] = {}
    try:
        items = pl.scan_parquet(features / "items.parquet")
        known = items.filter(pl.col("item_row").is_in(sorted(rows)))
        if rows:
            titles = dict(known.select("item_row", "display_text").collect().iter_rows())
    except (OSError, pl.exceptions.PolarsError):
        pass
    return [ranker_section(ranker), *(routing_section(one, titles) for one in routings)]


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    try:
        run = one_run(context, query, has_ranker, NO_RANKER)
    except NotFoundError as error:
        if query.text("run"):
            raise
        return Page(title=TITLE, lead=str(error), blocks=[Words(lines=[NO_ADAPTERS])])
    found = _read_ranker(context, run)
    lead, mixture, blocks = "This run has no experts.", list[Section](), list[Block]()
    if isinstance(found, str):
        blocks.append(Words(lines=[found], tone="note"))
    else:
        lead, mixture = _lead(found[0]), _mixture_sections(*found)
    adapters, problems = adapter_sections(context, run)
    return Page(
        title=TITLE,
        lead=lead,
        blocks=[*blocks, *(with_origins(one, [run.origin]) for one in (*mixture, *adapters))],
        controls=run_control(context, run),
        notices=problems,
    )


def _lead(ranker: Document) -> str:
    """State whether the ranker's experts are used evenly."""
    routings = routings_of(ranker)
    if not routings:
        return "The ranker has no experts."
    own = routings[0]
    used = own["num_experts"] - own["dead_experts"]
    return (
        f"{used} of {own['num_experts']} experts are used; the busiest has {max(own['load']):.1%} "
        f"of the visits, {1 + own['max_violation']:.2f} times the mean."
    )


ENTRY = PageEntry(
    name="experts",
    title=TITLE,
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
