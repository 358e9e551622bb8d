"""Page ``items``: exposure against merit, the fate of new items, popularity bias, one item."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import (
    Answers,
    answers,
    has_ranks,
    served_model,
)
from pipelines.dashboard.data.items import RunCatalogue, read_catalogue
from pipelines.dashboard.data.sides import (
    k_control,
    one_run,
    run_control,
    suggest_runs,
)
from pipelines.dashboard.data.windows import window_rows
from pipelines.dashboard.exposure import LISTED, NAMES, Exposure, count_exposure
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import (
    colors_of,
    counts,
    figure,
    interval_chart,
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
Z95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class ItemsView:
    """The run, model and list length of the page."""

    context: Context
    run: Run
    found: Answers
    features: Path
    catalogue: RunCatalogue
    model: str
    k: int

    def exposure(self, model: str) -> Exposure:
        """Count a model's lists."""
        events = self.catalogue.num_events
        return count_exposure(self.context, self.run, self.found, model, self.k, events)

    @property
    def models(self) -> list[str]:
        """The chosen model, then others, those whose lists are served before their members."""
        return [self.model, *(one for one in reversed(self.found.models) if one != self.model)]


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
        catalogue=read_catalogue(context, found.features),
        model=query.choice("model", found.models, served_model(run, found.models)),
        k=query.number("k", 10, least=1, most=LISTED),
    )


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    shown = read_shown(context, query)
    own = shown.exposure(shown.model)
    compared = {model_label(name): shown.exposure(name) for name in shown.models[: DRAWN + 1]}
    first: list[Block] = []
    notices = []
    if item_id := query.text("item"):
        row = shown.catalogue.row_of(item_id)
        if row is None:
            notices.append(
                f"no item {item_id!r} in {shown.run.name}; search the table below by its title"
            )
        else:
            first.append(with_origins(_item_section(shown, own, row), [shown.run.origin]))
    parts: list[tuple[str, str, Block]] = [
        ("exposure", "Exposure against merit", _exposure_chart(own, compared)),
        ("fate", "The fate of new and rare items", _fate(shown.k, compared)),
        ("bias", "Popularity bias", _bias_table(shown)),
        ("all", "All items", _items_table()),
    ]
    sections = [Section(key=key, title=title, blocks=[block]) for key, title, block in parts]
    label, models = model_label(shown.model), {one: model_label(one) for one in shown.found.models}
    return Page(
        title=f"Items: {label}",
        lead=f"The first {shown.k} of {label} show {own.coverage:.0%} of {len(own.shown) - 1:,} "
        f"items; 1% of the items take {own.top_share:.0%} of the places.",
        blocks=[*first, *(with_origins(one, [shown.run.origin]) for one in sections)],
        controls=[
            *run_control(context, shown.run, clears=("model", "item")),
            select("model", "Model", shown.model, models),
            k_control(shown.k, LISTED),
        ],
        notices=notices,
    )


def _exposure_chart(own: Exposure, compared: dict[str, Exposure]) -> Chart:
    """Stack the buckets of events: catalogue, training, held-out events, and each model's lists."""
    parts = {
        "items of the catalogue": own.by_bucket(np.ones(len(own.shown), np.int64)),
        "training events": own.by_bucket(own.num_events),
        "held-out events": own.by_bucket(own.wanted),
        **{label: one.by_bucket(one.shown) for label, one in compared.items()},
    }
    names = [f"{name} events" for name in NAMES]
    return figure(
        share_chart,
        "exposure-chart",
        "Who is shown, by training events of the item",
        "A model that shows items as often as users want them has the bar of the held-out "
        "events. More of the last colours: popular items are shown more than they are wanted.",
        [*texts("of", "training events"), *counts("number"), *shares("share")],
        [
            (label, name, number, number / max(1, int(found.sum())))
            for label, found in parts.items()
            for name, number in zip(names, found.tolist(), strict=True)
        ],
        "label series - share",
        colors=colors_of(names),
        shown=lambda row: bool(row[2]),
        x_title="share",
    )


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Compute the interval of a share at 95% (Wilson, 1927)."""
    share, z = hits / total, Z95**2 / total
    middle, half = share + z / 2, Z95 * math.sqrt(share * (1 - share) / total + z / (4 * total))
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def _fate(k: int, compared: dict[str, Exposure]) -> Chart:
    """Draw how often an item is found that a user wanted, by the item's training events."""
    rows: list[tuple[Cell, ...]] = []
    for label, one in compared.items():
        ones = np.ones(len(one.shown), np.int64)
        groups = (ones, (one.shown > 0).astype(np.int64), one.wanted, one.hits)
        parts = zip(*(one.by_bucket(group).tolist() for group in groups), strict=True)
        for bucket, (items, listed, wanted, hits) in zip(NAMES, parts, strict=True):
            ends = wilson(hits, wanted) if wanted else (None, None)
            share = hits / wanted if wanted else None
            rows.append((label, bucket, items, listed, wanted, hits, share, *ends))
    drawn = {row[1] for row in rows if row[4]}
    return figure(
        interval_chart,
        "fate-chart",
        f"Held-out items found in the first {k}",
        "By training events of the item, with 95% intervals. At 'none' a model can only "
        "know the item's text. The table says how many such items are listed at all.",
        [
            *texts("model", "training events"),
            *counts("items", "listed", "held-out", "found"),
            *shares("share found", "low", "high"),
        ],
        rows,
        "series label - - - - mean low high",
        colors=colors_of(list(compared)),
        shown=lambda row: bool(row[4]),
        x_title=f"share of the held-out items in the first {k}",
        labels=[name for name in NAMES if name in drawn],
    )


def _bias_table(shown: ItemsView) -> Table:
    """Tabulate how popular each model's lists are against what users wanted."""
    rows: list[list[Cell]] = []
    for name in shown.models:
        one = shown.exposure(name)
        lists, wanted = one.mean_events(one.shown), one.mean_events(one.wanted)
        lift = lists / wanted - 1 if wanted else None
        evenness = (one.coverage, one.gini, one.top_share)
        rows.append([model_label(name), lists, wanted, lift, *evenness])
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
    own = shown.exposure(shown.model)
    known = shown.catalogue
    there = (known.item_ids != "").to_numpy()
    kept = np.flatnonzero(known.matching(window.search) & there)
    numbers_ = (own.num_events, own.shown, own.wanted, own.hits)
    part = window_rows(kept, (known.titles, known.categories, *numbers_, own.ratio), window, 6)
    found: list[list[Cell | LinkedCell]] = []
    for row in part.tolist():
        ratio = float(own.ratio[row])
        exposure = None if math.isnan(ratio) else ratio if math.isfinite(ratio) else "\u221e"
        parameters = {"run": shown.run.key, "model": shown.model, "item": known.item_id(row)}
        link = Link(label="about this item", page="items", parameters=parameters)
        title = LinkedCell(text=known.title(row), link=link)
        found.append([title, known.categories[row], *(int(one[row]) for one in numbers_), exposure])
    return Rows(total=int(there.sum()), found=len(kept), rows=found)


def _item_section(shown: ItemsView, own: Exposure, row: int) -> Section:
    """Show the numbers of one item."""
    known, item_id = shown.catalogue, shown.catalogue.item_id(row)
    users = pl.scan_parquet(shown.found.table).select(pl.col("user_row").n_unique())
    lists = max(1, int(users.collect().item()))
    share = f"{own.shown[row] / lists:.2%} of the lists, first {shown.k}"
    bucket = f"bucket {NAMES[int(own.bucket[row])]}"
    rows = (
        ("Training events", f"{known.num_events[row]:,}", bucket),
        ("In lists", f"{own.shown[row]:,}", share),
        ("Held-out", f"{own.wanted[row]:,}", "queries wanted it"),
        ("Found", f"{own.hits[row]:,}", f"in the first {shown.k}"),
    )
    tiles = [Tile(label=label, value=value, note=note) for label, value, note in rows]
    parameters = {"run": shown.run.key, "item": item_id}
    link = Link(label="Users who wanted it", page="why", parameters=parameters)
    blocks: list[Block] = [Tiles(tiles=tiles)]
    if own.wanted[row]:
        blocks.append(Words(lines=["Next:"], links=[link]))
    kinds = f"{known.categories[row]}. " if known.categories[row] else ""
    return Section(key="item", title=known.title(row), note=f"{kinds}Id {item_id}.", blocks=blocks)


ENTRY = PageEntry(
    name="items",
    title="Items",
    build=build,
    rows={"items": window_of_items},
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
