"""Page ``items``: exposure against merit, the fate of new items, popularity bias, one item."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import Side
from pipelines.dashboard.data.sides import run_control, split_control, suggest_runs
from pipelines.dashboard.items.exposure import LISTED, NAMES, Exposure
from pipelines.dashboard.items.item import item_section
from pipelines.dashboard.items.shown import Shown, shown_of
from pipelines.dashboard.query import Query
from pipelines.pages.charts.shapes import Bar, Dot, interval_chart, share_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.columns import counts, numbers, shares, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Control,
    Link,
    LinkedCell,
    Option,
    Page,
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Window,
)
from pipelines.pages.wording import model_label

DRAWN = 4
"""Models that are drawn beside the chosen one."""
Z95 = 1.959964


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    shown = shown_of(context, query)
    own = shown.exposure(context, shown.model)
    compared = {name: shown.exposure(context, name) for name in shown.models[: DRAWN + 1]}
    blocks: list[Block] = []
    notices = []
    if item_id := query.text("item"):
        row = shown.catalogue.row_of(item_id)
        if row is None:
            notices.append(f"no item {item_id!r} in {shown.run.name}; search for it by its title")
        else:
            blocks.append(item_section(context, shown, row))
    label = model_label(shown.model)
    blocks += [
        tiles(own),
        Section(
            key="exposure",
            title="Exposure against merit",
            blocks=[exposure_chart(shown, compared)],
        ),
        Section(key="fate", title="The fate of new and rare items", blocks=[fate(shown, compared)]),
        Section(key="bias", title="Popularity bias", blocks=[bias_table(context, shown)]),
        Section(key="all", title="All items", blocks=[items_table(context, shown, own)]),
    ]
    return Page(
        title=f"Items: {label}",
        lead=f"The first {shown.k} of {label} show {own.coverage:.0%} of {len(own.shown) - 1:,} "
        f"items; 1% of the items take {own.top_share:.0%} of the places.",
        blocks=blocks,
        controls=own_controls(context, shown, query),
        notices=notices,
    )


def own_controls(context: Context, shown: Shown, query: Query) -> list[Control]:
    """Let run, model, k, split and item be chosen."""
    models = [Option(value=name, label=model_label(name)) for name in shown.found.models]
    found = [
        *run_control(context, shown.run, clears=("model", "item")),
        Control(name="model", label="Model", kind="select", value=shown.model, options=models),
        Control(name="k", label="k", kind="number", value=str(shown.k), least=1, most=LISTED),
        split_control([Side(run=shown.run, model=shown.model)], shown.split),
    ]
    if not context.exported:
        text = query.text("item")
        row = shown.catalogue.row_of(text)
        title = text if row is None else shown.catalogue.title(row)
        options = [Option(value=text, label=title)] if text else []
        found.append(
            Control(
                name="item",
                label="Item",
                kind="search",
                value=text,
                options=options,
                suggest="items",
            )
        )
    return found


def tiles(own: Exposure) -> Tiles:
    """Sum up how evenly items are shown."""
    lists, events = own.mean_events(own.shown), own.mean_events(own.wanted)
    return Tiles(
        tiles=[
            Tile(label="Coverage", value=f"{own.coverage:.1%}", note="items in at least one list"),
            Tile(
                label="Concentration (Gini)",
                value=f"{own.gini:.3f}",
                note="0: all items equally often; near 1: few items take all",
            ),
            Tile(
                label="The top 1% of items",
                value=f"{own.top_share:.1%}",
                note="of all places in lists",
            ),
            Tile(
                label="Popularity of a listed item",
                value=f"{lists:,.0f} events",
                note=f"held-out items have {events:,.0f}",
            ),
        ]
    )


def exposure_chart(shown: Shown, compared: dict[str, Exposure]) -> Chart:
    """Stack the buckets of events: catalogue, training, held-out events, and each model's lists."""
    own = compared[shown.model]
    ones = np.ones(len(own.shown), np.int64)
    counts = {
        "items of the catalogue": own.by_bucket(ones),
        "training events": own.by_bucket(own.num_events),
        "held-out events": own.by_bucket(own.wanted),
        **{model_label(name): one.by_bucket(one.shown) for name, one in compared.items()},
    }
    names = [f"{name} events" for name in NAMES]
    colors = {name: color_of(place) for place, name in enumerate(names)}
    bars, rows = [], []
    for label, found in counts.items():
        total = max(1, int(found.sum()))
        rows.append((label, *found.tolist()))
        bars += [
            Bar(label=label, series=name, share=number / total, note=f"{label} \u00b7 {name}: "
                f"{number:,} ({number / total:.1%})")
            for name, number in zip(names, found.tolist(), strict=True)
            if number
        ]  # fmt: skip
    return Chart(
        key="exposure-chart",
        title="Who is shown, by training events of the item",
        note="A model that shows items as often as users want them has the bar of the held-out "
        "events. More of the last colours: popular items are shown more than they are wanted.",
        description=f"Shares of {len(NAMES)} buckets of items in {len(counts)} bars.",
        spec=share_chart(bars, colors, x_title="share", labels=list(counts)),
        columns=("of", *names),
        rows=rows,
        legend=colors,
        origins=[shown.run.origin],
    )


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Interval of a share at 95% (Wilson, 1927)."""
    share, z = hits / total, Z95**2 / total
    middle, half = share + z / 2, Z95 * math.sqrt(share * (1 - share) / total + z / (4 * total))
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def fate(shown: Shown, compared: dict[str, Exposure]) -> Chart:
    """Draw how often an item is found that a user wanted, by the item's training events."""
    dots, rows = [], []
    labels = {name: model_label(name) for name in compared}
    for name, one in compared.items():
        wanted, hits = one.by_bucket(one.wanted).tolist(), one.by_bucket(one.hits).tolist()
        listed = one.by_bucket((one.shown > 0).astype(np.int64)).tolist()
        items = one.by_bucket(np.ones(len(one.shown), np.int64)).tolist()
        for place, bucket in enumerate(NAMES):
            rows.append(
                (labels[name], bucket, items[place], listed[place], wanted[place], hits[place])
            )
            if wanted[place]:
                low, high = wilson(hits[place], wanted[place])
                note = f"{labels[name]}, {bucket} events: {hits[place]:,} of {wanted[place]:,}"
                dots.append(
                    Dot(
                        label=bucket,
                        series=labels[name],
                        mean=hits[place] / wanted[place],
                        low=low,
                        high=high,
                        note=note,
                    )
                )
    colors = {label: color_of(place) for place, label in enumerate(labels.values())}
    drawn = {dot.label for dot in dots}
    return Chart(
        key="fate-chart",
        title=f"Held-out items found in the first {shown.k}",
        note="By training events of the item, with 95% intervals. At 'none' a model can only "
        "know the item's text. The table says how many such items are listed at all.",
        description=f"Hit rates of {len(labels)} models in {len(drawn)} buckets.",
        spec=interval_chart(
            dots,
            colors,
            x_title=f"share of the held-out items in the first {shown.k}",
            labels=[name for name in NAMES if name in drawn],
        ),
        columns=("model", "training events", "items", "listed", "held-out", "found"),
        rows=rows,
        legend=colors,
        origins=[shown.run.origin],
    )


def bias_table(context: Context, shown: Shown) -> Table:
    """Tabulate how popular each model's lists are against what users wanted."""
    rows: list[list[Cell | LinkedCell]] = []
    for name in shown.models:
        one = shown.exposure(context, name)
        lists, wanted = one.mean_events(one.shown), one.mean_events(one.wanted)
        lift = lists / wanted - 1 if wanted else None
        row: list[Cell | LinkedCell] = [
            model_label(name), lists, wanted, lift, one.coverage, one.gini, one.top_share,
        ]  # fmt: skip
        rows.append(row)
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
        origins=[shown.run.origin],
    )


def items_table(context: Context, shown: Shown, own: Exposure) -> Table:
    """List every item, those that are shown most for their events first."""
    exported = context.exported
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
        source=None if exported else "items",
        rows=_rows(shown, own, Window()).rows if exported else (),
        origins=[shown.run.origin],
    )


def window_of_items(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of items."""
    shown = shown_of(context, query)
    return _rows(shown, shown.exposure(context, shown.model), window)


def _rows(shown: Shown, own: Exposure, window: Window) -> Rows:
    known = shown.catalogue
    there = (known.item_ids != "").to_numpy()
    kept = np.flatnonzero(known.matching(window.search) & there)
    keys = {2: own.num_events, 3: own.shown, 4: own.wanted, 5: own.hits}
    if window.order_by in (0, 1):
        texts = known.titles if window.order_by == 0 else known.categories
        order = texts.gather(kept).arg_sort(descending=window.descending).to_numpy()
    else:
        key = keys.get(window.order_by or -1, own.ratio)[kept].astype(np.float64)
        descending = window.descending or window.order_by is None
        # What is no number comes last either way.
        key = np.where(np.isnan(key), -np.inf if descending else np.inf, key)
        order = np.argsort(-key if descending else key, kind="stable")
    part = kept[order[window.start : window.start + window.length]]
    found: list[list[Cell | LinkedCell]] = []
    for row in part.tolist():
        parameters = {"run": shown.run.key, "model": shown.model, "item": known.item_id(row)}
        link = Link(label="", page="items", parameters=parameters)
        ratio = float(own.ratio[row])
        found.append(
            [
                LinkedCell(text=known.title(row), link=link),
                known.categories[row],
                int(own.num_events[row]),
                int(own.shown[row]),
                int(own.wanted[row]),
                int(own.hits[row]),
                None if math.isnan(ratio) else ratio if math.isfinite(ratio) else "\u221e",
            ]
        )
    return Rows(total=int(there.sum()), found=len(kept), rows=found)


def suggest_items(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find items by a part of their title, or by id."""
    known = shown_of(context, query).catalogue
    return [Option(value=known.item_id(row), label=known.title(row)) for row in known.find(text)]


ENTRY = PageEntry(
    name="items",
    title="Items",
    build=build,
    rows={"items": window_of_items},
    suggest={"runs": suggest_runs, "items": suggest_items},
    keeps=("run",),
)
