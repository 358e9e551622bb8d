"""The part of the page about the ranker's mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.find import RELEASED
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Origin, Section, Words
from pipelines.pages.figure import with_origins
from pipelines.pages.ranker_figures import ranker_section, routing_section
from pipelines.pages.rankers import FILE, RankerReport, Routing, read_ranker
from pipelines.publishing.released import shop_workspace

STAGE = "train_ranker"
NO_RANKER = (
    "No ranker was trained in this run. [ranker_training] enabled = true trains one, and "
    '[ranker] trunk = "sparse" gives it a mixture of experts; then recsys run.'
)


class Found(NamedTuple):
    """A run's ranker."""

    report: RankerReport
    features: Path
    """The build_features whose item rows its measurements name; may be gone."""


def places_of(context: Context, run: Run) -> Iterator[Path]:
    """List the folders in which the stages of a run may lie, the likeliest first."""
    if run.kind == "workspace":
        yield run.path
        return
    try:
        maker = None if run.made_by is None else context.stores.run(run.made_by)
    except NotFoundError:
        maker = None
    if maker is not None:
        version = run.name.partition("+")[0]
        whole = shop_workspace(maker.path)
        yield whole / RELEASED / version
        if maker.bundles[:1] == (version,):
            yield maker.path


def find_ranker(context: Context, run: Run) -> Found | str:
    """Read a run's ranker, or say why there is none."""
    for place in places_of(context, run):
        stage = place / STAGE
        orders = sorted(path.parent.name for path in stage.glob(f"*/{FILE}"))
        if not orders:
            continue
        order = "given" if "given" in orders else orders[0]
        try:
            report = read_ranker(stage, order)
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"The ranker's measurements cannot be read: {type(error).__name__}: {error}"
        if report is not None:
            return Found(report, place / "build_features")
    if run.kind == "bundle":
        return (
            "A bundle holds no measurements of its ranker, and those of the run that made it are "
            "not here. Choose a run."
        )
    return NO_RANKER


def mixture_sections(found: Found, origins: Sequence[Origin]) -> list[Section]:
    """Show the trunks, and of each router its balance and what its experts are for."""
    report = found.report
    if not report.trunks:
        words = Words(lines=[f"No ranker could be trained: {report.reason}"], tone="note")
        return [Section(key="ranker", title="Ranker", blocks=[words])]
    titles = titles_of(found.features, report.routings)
    sections = [
        ranker_section(report),
        *(routing_section(one, titles) for one in report.routings),
    ]
    return [with_origins(one, origins) for one in sections]


def titles_of(features: Path, routings: Sequence[Routing]) -> Mapping[int, str]:
    """Read the titles of the items that are named, by item row; none where they are gone."""
    rows = sorted({one["item_row"] for routing in routings for own in routing.items for one in own})
    if not rows:
        return {}
    try:
        items = pl.scan_parquet(features / "items.parquet")
        known = items.filter(pl.col("item_row").is_in(rows)).select("item_row", "display_text")
        return dict(known.collect().iter_rows())
    except (OSError, pl.exceptions.PolarsError):
        return {}
