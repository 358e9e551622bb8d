"""One item: its numbers, how models rank it where it was wanted, who wanted it, what is near."""

from __future__ import annotations

import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.items import user_ids
from pipelines.dashboard.items.exposure import NAMES
from pipelines.dashboard.items.neighbours import nearest
from pipelines.dashboard.items.shown import Shown
from pipelines.pages.charts.shapes import Bar, share_chart
from pipelines.pages.charts.style import NOBODY, color_of
from pipelines.pages.columns import counts, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Link,
    LinkedCell,
    Lists,
    Section,
    Table,
    Tile,
    Tiles,
)
from pipelines.pages.wins import RANK
from pipelines.pages.wording import model_label

PLACES = {"1-10": 10, "11-50": 50, "51-100": 100}
BEYOND = "beyond 100"
MOST_USERS = 100


def item_section(context: Context, shown: Shown, row: int) -> Section:
    """Show an item."""
    known, own = shown.catalogue, shown.exposure(context, shown.model)
    ranks = [f"{RANK}{model}" for model in shown.found.models]
    frame = pl.scan_parquet(shown.found.table).filter(pl.col("item_row") == row)
    wanted = frame.select("user_row", *ranks).collect()
    lists = max(1, wanted_lists(shown))
    blocks: list[Block] = [
        Tiles(
            tiles=[
                Tile(label="Training events", value=f"{known.num_events[row]:,}",
                     note=f"bucket {NAMES[int(own.bucket[row])]}"),
                Tile(label="In lists", value=f"{own.shown[row]:,}",
                     note=f"{own.shown[row] / lists:.2%} of the lists, first {shown.k}"),
                Tile(label="Held-out", value=f"{own.wanted[row]:,}", note="queries wanted it"),
                Tile(label="Found", value=f"{own.hits[row]:,}", note=f"in the first {shown.k}"),
            ]
        )
    ]  # fmt: skip
    if wanted.height:
        blocks += [ranks_chart(shown, wanted), users_table(shown, wanted)]
    if near := nearest(shown.run.path, shown.run.key, row, known):
        blocks.append(Lists(key="nearest", lists=near, origins=[shown.run.origin]))
    kinds = f"{known.categories[row]}. " if known.categories[row] else ""
    note = f"{kinds}Id {known.item_id(row)}. Nearest items by each source stand at the end."
    return Section(key="item", title=known.title(row), note=note, blocks=blocks)


def wanted_lists(shown: Shown) -> int:
    """Count the users whose lists are kept."""
    table = pl.scan_parquet(shown.found.table)
    return int(table.select(pl.col("user_row").n_unique()).collect().item())


def ranks_chart(shown: Shown, wanted: pl.DataFrame) -> Chart:
    """Draw at which ranks each model has the item where it was wanted."""
    names = [*PLACES, BEYOND]
    colors = {name: color_of(place) for place, name in enumerate(PLACES)} | {BEYOND: NOBODY}
    bars: list[Bar] = []
    rows: list[tuple[str, *tuple[int, ...]]] = []
    for model in reversed(shown.found.models):
        ranks = wanted[f"{RANK}{model}"].fill_null(1 << 40)
        below = [int((ranks <= most).sum()) for most in PLACES.values()]
        counts = [below[0], below[1] - below[0], below[2] - below[1], len(ranks) - below[2]]
        label = model_label(model)
        rows.append((label, *counts))
        bars += [
            Bar(
                label=label,
                series=name,
                share=count / len(ranks),
                note=f"{label}, rank {name}: {count:,} of {len(ranks):,}",
            )
            for name, count in zip(names, counts, strict=True)
            if count
        ]
    return Chart(
        key="item-ranks",
        title="Where models rank it, for users who wanted it",
        note=f"Of {wanted.height:,} queries whose held-out item it is.",
        description=f"Shares of four ranges of ranks for {len(rows)} models.",
        spec=share_chart(
            bars, colors, x_title="share of the queries", labels=[row[0] for row in rows]
        ),
        columns=("model", *names),
        rows=rows,
        legend=colors,
        origins=[shown.run.origin],
    )


def users_table(shown: Shown, wanted: pl.DataFrame) -> Table:
    """List users who wanted it, the best rank first."""
    rank = f"{RANK}{shown.model}"
    part = wanted.sort(rank, nulls_last=True).head(MOST_USERS)
    names = user_ids(shown.features, part["user_row"].to_list())
    rows: list[list[Cell | LinkedCell]] = []
    for user_row, place in part.select("user_row", rank).iter_rows():
        user = names.get(user_row, "")
        parameters = {"run": shown.run.key, "split": shown.split, "user": user}
        link = Link(label="", page="why", parameters=parameters)
        rows.append([LinkedCell(text=user, link=link), place])
    more = wanted.height - part.height
    return Table(
        key="item-users",
        title="Users who wanted it",
        note="Their history and lists are a click away."
        + (f" {more:,} more are not shown." if more else ""),
        columns=[*texts("user"), *counts(f"rank by {model_label(shown.model)}")],
        rows=rows,
        page_length=10,
        origins=[shown.run.origin],
    )
