"""Page ``items``: exposure against merit, and every item.

Axes: N item rows (row 0 is padding).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import LISTED, Answers, answers, has_ranks, served_model
from pipelines.dashboard.data.items import cut_window, read_items, title_matches
from pipelines.dashboard.data.sides import k_control, one_run, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.evaluation.per_user import RANK
from pipelines.pages.charts import (
    colors_of,
    counts,
    figure,
    numbers,
    share_chart,
    shares,
    texts,
)
from pipelines.pages.document import (
    Cell,
    Chart,
    Link,
    LinkedCell,
    Page,
    Rows,
    Table,
    Window,
    select,
)
from pipelines.pages.wording import model_label

MISSING = (
    "No run here keeps lists by user. Run one whole: recsys run shop.toml; then start the "
    "dashboard with --root at its folder."
)
BUCKETS = ("none", "1", "2-4", "5-9", "10-19", "20-49", "50-99", "100 or more")
BOUNDS = (1, 2, 5, 10, 20, 50, 100)
"""Least training events of each bucket but the first."""
COLUMNS = ("title", "categories", "events", "shown", "wanted", "hits", "ratio")


class ItemsView(NamedTuple):
    """The run, model and list length of the page."""

    run: Run
    found: Answers
    model: str
    k: int

    def exposure(self, context: Context) -> pl.DataFrame:
        """Count the model's lists by item; kept until they change."""
        assert self.found.features is not None
        items, table = read_items(context, self.found.features), self.found.table
        key = ("exposure", self.run.key, self.model, self.k)
        make = partial(count_exposure, items, table, self.model, self.k)
        return context.tables.get(key, self.found.files, make)


def count_exposure(items: pl.DataFrame, table: Path, model: str, k: int) -> pl.DataFrame:
    """Add to each item how often it is among the first ``k`` of a list, held out, and found.

    Returns:
        The items with shown, wanted, hits, bucket (of training events, 0 to 7), and ratio: share of
        the places over share of the training events; null without either.
    """
    name, frame = f"top_k_{model}", pl.scan_parquet(table)
    try:
        if name not in frame.collect_schema():
            raise NotFoundError(f"{table.name} keeps no lists of {model}")
        listed = pl.col(name).list.head(k)
        read = frame.select("user_row", "item_row", f"{RANK}{model}", listed).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"{table} cannot be read: {error}") from error

    def counted(rows: pl.Series) -> pl.Series:
        inside = rows.drop_nulls().to_numpy()
        inside = inside[(inside > 0) & (inside < len(items))]
        return pl.Series(np.bincount(inside, minlength=len(items)).astype(np.int64))

    # A user with several held-out items has one list.
    lists = read.unique("user_row", keep="first")[name]
    hit = read.filter(pl.col(f"{RANK}{model}").is_between(1, k))
    shown, events = pl.col("shown"), pl.col("events")
    merit = events / pl.max_horizontal(events.sum(), 1)
    return (
        items.with_columns(
            shown=counted(lists.explode()),
            wanted=counted(read["item_row"]),
            hits=counted(hit["item_row"]),
            bucket=pl.Series(np.searchsorted(BOUNDS, items["events"].to_numpy(), side="right")),
        )
        .with_columns(ratio=shown / pl.max_horizontal(shown.sum(), 1) / merit)
        .with_columns(pl.col("ratio").fill_nan(None))
    )


def read_shown(context: Context, query: Query) -> ItemsView:
    """Read the parameters."""
    # A bundle keeps ranks and no lists.
    run = one_run(context, query, lambda one: one.kind == "workspace" and has_ranks(one), MISSING)
    found = answers(run)
    if found.features is None:
        raise NotFoundError(
            f"{run.name} keeps ranks and no lists; choose the workspace that released it"
        )
    model = query.choice("model", found.models, served_model(run, found.models))
    return ItemsView(run, found, model, query.number("k", 10, least=1, most=LISTED))


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    shown = read_shown(context, query)
    own, label = shown.exposure(context), model_label(shown.model)
    places = np.sort(own["shown"].to_numpy()[1:])[::-1]
    top = places[: max(1, round(len(places) / 100))].sum() / max(1, places.sum())
    models = {one: model_label(one) for one in shown.found.models}
    return Page(
        title=f"Items: {label}",
        lead=f"The first {shown.k} of {label} show {(places > 0).mean():.0%} of {len(places):,} "
        f"items; 1% of the items take {top:.0%} of the places.",
        blocks=[_exposure_chart(own, label, shown.run), _items_table(shown.run)],
        controls=[
            *run_control(context, shown.run, clears=("model",)),
            select("model", "Model", shown.model, models),
            k_control(shown.k, LISTED),
        ],
    )


def _by_bucket(exposure: pl.DataFrame, counted: pl.Expr) -> list[int]:
    """Sum over the items of each bucket."""
    sums = exposure[1:].group_by("bucket").agg(counted.sum().alias("sum"))
    found = dict(sums.select("bucket", "sum").iter_rows())
    return [int(found.get(place, 0)) for place in range(len(BUCKETS))]


def _exposure_chart(own: pl.DataFrame, label: str, run: Run) -> Chart:
    """Stack the buckets of events: catalogue, training, held-out events, and the model's lists."""
    parts = {
        "items of the catalogue": _by_bucket(own, pl.col("bucket") >= 0),
        "training events": _by_bucket(own, pl.col("events")),
        "held-out events": _by_bucket(own, pl.col("wanted")),
        "held-out events that are found": _by_bucket(own, pl.col("hits")),
        f"lists of {label}": _by_bucket(own, pl.col("shown")),
    }
    names = [f"{name} events" for name in BUCKETS]
    return figure(
        share_chart,
        "exposure-chart",
        "Who is shown, by training events of the item",
        "A model that shows items as often as users want them has the bar of the held-out "
        "events. More of the last colours: popular items are shown more than they are wanted. The "
        "table has how many of the held-out events are found.",
        [*texts("of", "training events"), *counts("number"), *shares("share")],
        [
            (part, name, number, number / max(1, sum(found)))
            for part, found in parts.items()
            for name, number in zip(names, found, strict=True)
        ],
        "label series - share",
        colors=colors_of(names),
        shown=lambda row: bool(row[2]),
        x_title="share",
        origins=[run.origin],
    )


def _items_table(run: Run) -> Table:
    """List every item, those that are shown most for their events first."""
    return Table(
        key="items",
        title="Items by exposure",
        note="Exposure: share of the places over share of the training events; 1 is in "
        "proportion, 0 is never shown, \u221e is shown without an event. Items that are "
        "over-exposed come first.",
        columns=[
            *texts("item", "categories"),
            *counts("training events", "in lists", "held-out", "found"),
            *numbers("exposure", format="metric"),
        ],
        source="items",
        origins=[run.origin],
    )


def window_of_items(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of items."""
    shown = read_shown(context, query)
    known = shown.exposure(context).filter(pl.col("item_id") != "")
    kept = known.filter(title_matches(window.search)) if window.search else known
    found: list[list[Cell | LinkedCell]] = []
    for one in cut_window(kept, window, COLUMNS, "ratio").iter_rows(named=True):
        parameters = {"run": shown.run.key, "item": one["item_id"]}
        link = Link(label="users who wanted it", page="why", parameters=parameters)
        ratio = "\u221e" if one["ratio"] == np.inf else one["ratio"]
        cells = [one[name] for name in COLUMNS[1:-1]]
        found.append([LinkedCell(text=one["title"], link=link), *cells, ratio])
    return Rows(total=len(known), found=len(kept), rows=found)


ENTRY = PageEntry(
    name="items",
    title="Items",
    build=build,
    rows={"items": window_of_items},
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
