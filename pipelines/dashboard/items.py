"""Page ``items``: exposure against merit, the fate of rare items, popularity bias, one item.

Axes: N item rows (row 0 is padding).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import LISTED, Answers, answers, has_ranks, served_model
from pipelines.dashboard.data.items import (
    cut_window,
    item_row,
    item_words,
    read_items,
    title_matches,
)
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
    Block,
    Cell,
    Chart,
    Link,
    LinkedCell,
    Page,
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Window,
    Words,
    select,
    with_origins,
)
from pipelines.pages.wording import model_label

MISSING = (
    "No run here keeps lists by user. Run one whole: recsys run shop.toml; then start the "
    "dashboard with --root at its folder."
)
DRAWN = 4
"""Models that are drawn next to the chosen one."""
BUCKETS = ("none", "1", "2-4", "5-9", "10-19", "20-49", "50-99", "100 or more")
BOUNDS = (1, 2, 5, 10, 20, 50, 100)
"""Least training events of each bucket but the first."""
COLUMNS = ("title", "categories", "events", "shown", "wanted", "hits", "ratio")


@dataclass(frozen=True, kw_only=True)
class ItemsView:
    """The run, model and list length of the page."""

    context: Context
    run: Run
    found: Answers
    features: Path
    model: str
    k: int

    def exposure(self, model: str) -> pl.DataFrame:
        """Count a model's lists by item; kept until they change."""
        key = ("exposure", self.run.key, model, self.k)
        return self.context.tables.get(key, self.found.files, lambda: self._count(model))

    def _count(self, model: str) -> pl.DataFrame:
        items = read_items(self.context, self.features)
        return count_exposure(items, self.found.table, model, self.k)


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
    return ItemsView(
        context=context,
        run=run,
        found=found,
        features=found.features,
        model=query.choice("model", found.models, served_model(run, found.models)),
        k=query.number("k", 10, least=1, most=LISTED),
    )


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    shown = read_shown(context, query)
    # Lists that are served come before those of their members.
    others = [one for one in reversed(shown.found.models) if one != shown.model]
    exposures = {model_label(one): shown.exposure(one) for one in (shown.model, *others)}
    own, label = shown.exposure(shown.model), model_label(shown.model)
    first: list[Section] = []
    notices = []
    if item_id := query.text("item"):
        row = item_row(own, item_id)
        if row is None:
            notices.append(
                f"no item {item_id!r} in {shown.run.name}; search the table below by its title"
            )
        else:
            first.append(_item_section(shown, own, row))
    drawn = dict(list(exposures.items())[: DRAWN + 1])
    parts: list[tuple[str, str, Block]] = [
        ("exposure", "Exposure against merit", _exposure_chart(own, drawn)),
        ("fate", "The fate of new and rare items", _fate(shown.k, drawn)),
        ("bias", "Popularity bias", _bias_table(exposures)),
        ("all", "All items", _items_table()),
    ]
    sections = [Section(key=key, title=title, blocks=[block]) for key, title, block in parts]
    coverage, _, top = _evenness(own)
    return Page(
        title=f"Items: {label}",
        lead=f"The first {shown.k} of {label} show {coverage:.0%} of {len(own) - 1:,} "
        f"items; 1% of the items take {top:.0%} of the places.",
        blocks=[with_origins(one, [shown.run.origin]) for one in (*first, *sections)],
        controls=[
            *run_control(context, shown.run, clears=("model", "item")),
            select(
                "model", "Model", shown.model, {one: model_label(one) for one in shown.found.models}
            ),
            k_control(shown.k, LISTED),
        ],
        notices=notices,
    )


def _by_bucket(exposure: pl.DataFrame, counted: pl.Expr) -> list[int]:
    """Sum over the items of each bucket."""
    sums = exposure[1:].group_by("bucket").agg(counted.sum().alias("sum"))
    found = dict(sums.select("bucket", "sum").iter_rows())
    return [int(found.get(place, 0)) for place in range(len(BUCKETS))]


def _evenness(exposure: pl.DataFrame) -> tuple[float, float, float]:
    """Compute coverage, Gini coefficient, and the share of places of the top 1% of items."""
    ordered = np.sort(exposure["shown"].to_numpy()[1:]).astype(np.float64)
    if not ordered.sum():
        return 0.0, 0.0, 0.0
    place, num = np.arange(1, len(ordered) + 1), len(ordered)
    gini = ((2 * place - num - 1) * ordered).sum() / (ordered.sum() * num)
    top = ordered[::-1][: max(1, round(num / 100))].sum() / ordered.sum()
    return float((ordered > 0).mean()), float(gini), float(top)


def _exposure_chart(own: pl.DataFrame, drawn: dict[str, pl.DataFrame]) -> Chart:
    """Stack the buckets of events: catalogue, training, held-out events, and each model's lists."""
    parts = {
        "items of the catalogue": _by_bucket(own, pl.col("bucket") >= 0),
        "training events": _by_bucket(own, pl.col("events")),
        "held-out events": _by_bucket(own, pl.col("wanted")),
        **{label: _by_bucket(one, pl.col("shown")) for label, one in drawn.items()},
    }
    names = [f"{name} events" for name in BUCKETS]
    return figure(
        share_chart,
        "exposure-chart",
        "Who is shown, by training events of the item",
        "A model that shows items as often as users want them has the bar of the held-out "
        "events. More of the last colours: popular items are shown more than they are wanted.",
        [*texts("of", "training events"), *counts("number"), *shares("share")],
        [
            (label, name, number, number / max(1, sum(found)))
            for label, found in parts.items()
            for name, number in zip(names, found, strict=True)
        ],
        "label series - share",
        colors=colors_of(names),
        shown=lambda row: bool(row[2]),
        x_title="share",
    )


def _fate(k: int, drawn: dict[str, pl.DataFrame]) -> Table:
    """Tabulate how often an item is found that a user wanted, by the item's training events."""
    rows: list[tuple[Cell, ...]] = []
    for label, one in drawn.items():
        counted = (pl.col("shown") > 0, pl.col("wanted"), pl.col("hits"))
        sums = (_by_bucket(one, column) for column in counted)
        for bucket, shown, wanted, hits in zip(BUCKETS, *sums, strict=True):
            rows.append((label, bucket, shown, wanted, hits, hits / wanted if wanted else None))
    return Table(
        key="fate-table",
        title=f"Held-out items found in the first {k}",
        note="By training events of the item. At 'none' a model can only know the item's text.",
        columns=[
            *texts("model", "training events"),
            *counts("items listed", "held-out", "found"),
            *shares("share found"),
        ],
        rows=rows,
        page_length=len(BUCKETS),
    )


def _bias_table(exposures: dict[str, pl.DataFrame]) -> Table:
    """Tabulate how popular each model's lists are against what users wanted."""

    def mean_events(one: pl.DataFrame, column: str) -> float:
        weights = one[column].to_numpy()[1:]
        return float((weights * one["events"].to_numpy()[1:]).sum() / max(1, weights.sum()))

    rows: list[list[Cell]] = []
    for label, one in exposures.items():
        lists, wanted = mean_events(one, "shown"), mean_events(one, "wanted")
        lift = lists / wanted - 1 if wanted else None
        rows.append([label, lists, wanted, lift, *_evenness(one)])
    return Table(
        key="bias-table",
        title="Popularity of lists, by model",
        note="Mean training events of a listed item against those of a held-out one. A lift of 0 "
        "is what users want; above it lists are more popular than that.",
        columns=[
            *texts("model"),
            *counts("events of a listed item", "of a held-out item"),
            *shares("lift", "coverage"),
            *numbers("Gini", format="metric"),
            *shares("top 1%"),
        ],
        rows=rows,
    )


def _items_table() -> Table:
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
    )


def window_of_items(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of items."""
    shown = read_shown(context, query)
    known = shown.exposure(shown.model).filter(pl.col("item_id") != "")
    kept = known.filter(title_matches(window.search)) if window.search else known
    found: list[list[Cell | LinkedCell]] = []
    for one in cut_window(kept, window, COLUMNS, "ratio").iter_rows(named=True):
        parameters = {"run": shown.run.key, "model": shown.model, "item": one["item_id"]}
        link = Link(label="about this item", page="items", parameters=parameters)
        ratio = "\u221e" if one["ratio"] == np.inf else one["ratio"]
        cells = [one[name] for name in COLUMNS[1:-1]]
        found.append([LinkedCell(text=one["title"], link=link), *cells, ratio])
    return Rows(total=len(known), found=len(kept), rows=found)


def _item_section(shown: ItemsView, own: pl.DataFrame, row: int) -> Section:
    """Show the numbers of one item."""
    item_id, title, note = item_words(own, row)
    one = own.row(row, named=True)
    parts = (
        ("Training events", one["events"], f"bucket {BUCKETS[one['bucket']]}"),
        ("In lists", one["shown"], f"of users, first {shown.k}"),
        ("Held-out", one["wanted"], "queries wanted it"),
        ("Found", one["hits"], f"in the first {shown.k}"),
    )
    tiles = [Tile(label=label, value=f"{value:,}", note=words) for label, value, words in parts]
    blocks: list[Block] = [Tiles(tiles=tiles)]
    if one["wanted"]:
        parameters = {"run": shown.run.key, "item": item_id}
        link = Link(label="Users who wanted it", page="why", parameters=parameters)
        blocks.append(Words(lines=["Next:"], links=[link]))
    return Section(key="item", title=title, note=f"{note}. Id {item_id}.", blocks=blocks)


ENTRY = PageEntry(
    name="items",
    title="Items",
    build=build,
    rows={"items": window_of_items},
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
