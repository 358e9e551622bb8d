"""Pages for tests: one with every kind of block and control, one that fails in every way."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.pages.charts import figure, numbers, share_chart, texts
from pipelines.pages.document import (
    Chart,
    Column,
    Control,
    Entry,
    ItemList,
    Link,
    LinkedCell,
    Lists,
    Option,
    Origin,
    Page,
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Window,
    Words,
)

HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed \U0001f600",
    "W" * 120,
    "Tom & Jerry &amp; <b>bold</b>",
)
ORIGIN = Origin(run="0123456789ab", name=HOSTILE[0], config_digest="c" * 64, data_digest="d" * 64)

NUM_ROWS = 2_000


def chart(key: str, color: str = "var(--m2)") -> Chart:
    rows = [(title, 0.1 * (place + 1)) for place, title in enumerate(HOSTILE)]
    return figure(
        share_chart,
        key,
        f"Chart {key}: {HOSTILE[0]}",
        "Longer is better.",
        [*texts("title", "series"), *numbers("NDCG@10")],
        [(title, HOSTILE[0], value) for title, value in rows],
        "label series share",
        colors={HOSTILE[0]: color, "other": "var(--m1)"},
        x_title="NDCG@10",
        origins=[ORIGIN],
    )


COLUMNS = (
    Column(label="item", note="Its title"),
    Column(label="NDCG@10", numeric=True, format="metric", note="Mean over users"),
    Column(label="difference", numeric=True, format="signed"),
    Column(label="time", numeric=True, format="seconds"),
    Column(label="kept"),
)


def row(place: int) -> list[object]:
    title = HOSTILE[place % len(HOSTILE)]
    link = Link(label="", page="other", parameters={"item": str(place)})
    value = None if place == 3 else float("nan") if place == 4 else place / 100
    return [
        LinkedCell(text=f"{place} {title}", link=link, sort=place),
        value,
        (-1) ** place * 0.01 * place,
        60.0 * place,
        place % 2 == 0,
    ]


def lists() -> Lists:
    link = Link(label="", page="other", parameters={"item": "1"})
    one = Entry(item_id="1", title=HOSTILE[0], note="found by two sources", mark="hit", link=link)
    two = Entry(item_id="2", title=HOSTILE[1], mark="seen")
    found = [
        ItemList(title="Before", entries=[one, two]),
        ItemList(title="After", note="with rules", entries=[two, one]),
        ItemList(title="None", empty="no items are left"),
    ]
    return Lists(key="lists", lists=found, origins=[ORIGIN])


def blocks() -> Sequence[object]:
    opens = Link(label="", page="every", parameters={"node": "1"})
    rows = [row(place) for place in range(60)]
    kept = {"columns": COLUMNS, "page_length": 10}
    note = "Rows of the document."
    table = Table(key="small", title="Small table", note=note, rows=rows, origins=[ORIGIN], **kept)
    note = "Rows come by windows."
    long = Table(key="long", title="Long table", note=note, source="long", **kept)
    report = Link(label="Its report", file="0123456789ab/report.html")
    return [
        Words(lines=["A paragraph."]),
        Words(lines=[HOSTILE[0], HOSTILE[1], HOSTILE[4]], tone="bad", links=[report]),
        Words(lines=["Good."], tone="good"),
        Words(lines=["A note."], tone="note"),
        Tiles(
            tiles=[
                Tile(label="NDCG@10", value="0.1234", note="users", tone="good"),
                Tile(label=HOSTILE[0], value="12 ms", tone="bad", link=opens),
                Tile(label="Items", value="1,234"),
            ]
        ),
        Section(
            key="charts",
            title="Charts",
            note="Two of them.",
            blocks=[chart("first"), chart("second", "var(--m1)")],
        ),
        Section(key="tables", title="Tables", blocks=[table, long]),
        Section(key="others", title="Lists", blocks=[lists()]),
    ]


def controls(query: Query) -> Sequence[Control]:
    options = [Option(value=str(place), label=f"Model {place}") for place in range(6)]
    hostile = [*options, Option(value="h", label=HOSTILE[0])]
    several = {name: query.several(name, at_most=3) for name in ("runs", "found")}
    k = str(query.number("k", 10, least=1, most=50))
    rows = (
        ("model", "Model", "select", query.text("model"), {"options": hostile}),
        ("runs", "Runs", "several", several["runs"], {"options": options, "at_most": 3}),
        ("found", "Found", "several", several["found"], {"suggest": "items"}),
        ("item", "Item", "search", query.text("item"), {"suggest": "items"}),
        ("k", "List length", "number", k, {"least": 1, "most": 50}),
    )
    return [
        Control(name=name, label=label, kind=kind, value=value, **more)  # type: ignore[arg-type]
        for name, label, kind, value, more in rows
    ]


def every(context: Context, query: Query) -> Page:
    return Page(
        title=f"Every block {HOSTILE[2]}",
        lead=f"Model {query.text('model', 'none')}, k {query.text('k', '10')}, "
        f"item {query.text('item', 'none')}.",
        blocks=blocks(),  # type: ignore[arg-type]
        controls=controls(query),
        notices=["A store is gone.", HOSTILE[0]],
    )


def long_rows(context: Context, query: Query, window: Window) -> Rows:
    places = [
        place for place in range(NUM_ROWS) if window.search in f"{place} {HOSTILE[place % 5]}"
    ]
    places.sort(reverse=window.descending)
    shown = places[window.start : window.start + window.length]
    return Rows(total=NUM_ROWS, found=len(places), rows=[row(place) for place in shown])  # type: ignore[misc]


def items(context: Context, query: Query, text: str) -> Sequence[Option]:
    every_item = [Option(value=str(place), label=title) for place, title in enumerate(HOSTILE)]
    return [one for one in every_item if text.lower() in one.label.lower()]


def other(context: Context, query: Query) -> Page:
    if query.text("item") == "404":
        raise NotFoundError("no item '404'; see the page Items")
    if query.text("item") == "broken":
        raise RuntimeError("a secret of the machine")
    if query.text("item") == "bad":
        raise QueryError("item is 'bad', which is none of: 1, 2")
    return Page(title="Other page", lead=f"Item {query.text('item', 'none')}.", blocks=[])


PAGES = (
    PageEntry(
        name="every",
        title="Every block",
        build=every,
        rows={"long": long_rows},
        suggest={"items": items},
    ),
    PageEntry(name="other", title="Other page", build=other, keeps=("model",)),
    PageEntry(name="hidden", title="Hidden", build=other, in_navigation=False),
)
