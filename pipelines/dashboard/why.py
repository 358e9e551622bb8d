"""Page ``why``: who won and lost between two models, where items are lost, and one user.

Axes: M queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import (
    DEPTH,
    LISTED,
    SERVED,
    Side,
    answers,
    has_ranks,
)
from pipelines.dashboard.data.items import (
    cut_window,
    item_words,
    read_items,
    title_matches,
    user_row,
)
from pipelines.dashboard.data.pairs import Pairs, join_pairs
from pipelines.dashboard.data.sides import (
    NO_PAIR,
    choose_sides,
    controls,
    k_control,
    one_run,
    origins,
    pair_parameters,
    side_name,
    suggest_runs,
)
from pipelines.dashboard.query import NotFoundError, Query, QueryError
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
    Entry,
    ItemList,
    Link,
    LinkedCell,
    Lists,
    Page,
    Parameters,
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Window,
    Words,
    select,
)
from pipelines.pages.wording import model_label
from recsys.data.dataset import Sequences
from recsys.models.names import SLOW_MODELS

ALL = "all"
OUTCOMES = ("both", "first", "second", "neither")
HISTORY = 15
"""Newest events of a user that are listed."""
COLUMNS = ("user_id", "title", "place", "rank0", "rank1", "gain", "outcome")
NO_FEATURES = "users are shown if a workspace keeps their histories and lists"
COMBINED = (BLEND, BLEND_FAST, RANKED, SERVED)
"""Lists that are made of other lists."""
STEPS = {
    "no source finds it": "in no source's first {depth}: other sources or data could help",
    "every source ranks it low": "in a source's first {depth}, in none's first {k}: better sources "
    "could help",
    "the blend drops it": "in a source's first {k}, not in the blend's: other weights could help",
    "the ranker drops it": "in the blend's first {k}, not after the ranker",
}
"""Steps on which items are lost, and what each means."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Two models on the same queries."""

    pairs: Pairs
    names: tuple[str, str]
    k: int
    queries: pl.DataFrame
    """Those of the pairs with outcome, one of `OUTCOMES`, and gain of the second side by the
    discount of NDCG@100."""

    @property
    def labels(self) -> dict[str, str]:
        """Label of each outcome."""
        labels = ("both find it", *(f"only {name}" for name in self.names), "neither")
        return dict(zip(OUTCOMES, labels, strict=True))

    @property
    def parameters(self) -> Parameters:
        """Parameters that keep the page's sides."""
        return {"k": str(self.k), **pair_parameters(*self.pairs.sides)}


def read_contest(context: Context, query: Query) -> Contest:
    """Read the sides and the outcome of each query."""
    if not any(query.text(name) for name in ("runs", "run")):
        # A workspace keeps every model's list, a bundle its own ranks alone.
        newest = one_run(context, query, lambda run: has_ranks(run, 2), NO_PAIR)
        query = Query({**query.values, "run": (newest.key,)})
    sides = choose_sides(context, query, at_most=2)
    pairs = join_pairs(context, sides)
    k = query.number("k", 10, least=1, most=LISTED)
    first, second = (pl.col(rank).is_between(1, k) for rank in ("rank0", "rank1"))
    worth = [
        pl.when(pl.col(rank) > 0).then(1 / (1 + pl.col(rank).cast(pl.Float64)).log(2)).otherwise(0)
        for rank in ("rank0", "rank1")
    ]
    one = pl.when(first).then(pl.lit("first")).when(second).then(pl.lit("second"))
    outcome = (
        pl.when(first & second).then(pl.lit("both")).otherwise(one.otherwise(pl.lit("neither")))
    )
    return Contest(
        pairs=pairs,
        names=(side_name(sides[0], sides), side_name(sides[1], sides)),
        k=k,
        queries=pairs.queries.with_columns(outcome=outcome, gain=worth[1] - worth[0]),
    )


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    shown = read_contest(context, query)
    first, second = shown.names
    own = controls(context, shown.pairs.sides, at_most=2)
    if not len(shown.pairs):
        lead = "No query was answered by both, so neither won or lost. Choose runs of one data set."
        return Page(title="Why", lead=lead, blocks=[], controls=own)
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    counted = dict(shown.queries["outcome"].value_counts().iter_rows())
    totals = {name: counted.get(name, 0) for name in OUTCOMES}
    blocks: list[Block] = [_tiles(shown, totals)]
    notices = []
    if user_id := query.text("user"):
        try:
            blocks.append(_user_section(context, shown, user_id))
        except NotFoundError as error:
            notices.append(str(error))
    lost = [chart for place in (0, 1) for chart in _lost_chart(shown, place)]
    if lost:
        blocks.append(Section(key="lost", title="Where items are lost", blocks=lost))
    if shown.pairs.features is not None:
        users: list[Block] = [_queries_table(shown, shown.labels.get(outcome, "All queries"))]
        if item := query.text("item"):
            back = Link(label="All users", page="why", parameters=shown.parameters)
            users.insert(0, Words(lines=[f"Only users who wanted the item {item}."], links=[back]))
        blocks.append(Section(key="queries-section", title="Users", blocks=users))
    return Page(
        title=f"Why: {first} or {second}",
        lead=f"Of {len(shown.pairs):,} held-out items, {totals['first']:,} are in the first "
        f"{shown.k} of {first} alone, {totals['second']:,} in those of {second} alone.",
        blocks=blocks,
        controls=[
            *own,
            k_control(shown.k, LISTED),
            select("outcome", "Queries", outcome, {ALL: "all", **shown.labels}),
        ],
        notices=notices,
    )


def _tiles(shown: Contest, totals: dict[str, int]) -> Tiles:
    """Count the outcomes."""
    found = []
    for outcome, label in shown.labels.items():
        parameters = {**shown.parameters, "outcome": outcome}
        link = Link(label="show them", page="why", parameters=parameters)
        note = f"{totals[outcome] / len(shown.queries):.1%} of the queries, first {shown.k}"
        title = label[0].upper() + label[1:]
        found.append(Tile(label=title, value=f"{totals[outcome]:,}", note=note, link=link))
    return Tiles(tiles=found)


def lost_where(side: Side, k: int) -> dict[str, int]:
    """Count on which step a combined list loses the items that it misses.

    Returns:
        Nothing if the list is of one model, so that there are no sources to look at.
    """
    found = answers(side.run)
    sources = [name for name in found.models if name not in COMBINED]
    if side.model in (BLEND_FAST, RANKED):
        sources = [name for name in sources if name not in SLOW_MODELS]
    if side.model not in COMBINED or not sources or found.features is None:
        return {}

    def rank(model: str) -> pl.Expr:
        return pl.col(f"{RANK}{model}").fill_null(1 << 40)

    has_ranker = side.model == RANKED and BLEND_FAST in found.models
    kept = rank(BLEND_FAST) <= k if has_ranker else pl.lit(value=False)
    best = pl.min_horizontal(rank(name) for name in sources)
    step = pl.when(kept).then(3).when(best <= k).then(2).when(best <= DEPTH).then(1).otherwise(0)
    missed = pl.scan_parquet(found.table).filter(rank(side.model) > k)
    counted = dict(missed.group_by(step.alias("step")).len().collect().iter_rows())
    steps = list(STEPS)[: 4 if has_ranker else 3]
    return {words: int(counted.get(place, 0)) for place, words in enumerate(steps)}


def _lost_chart(shown: Contest, place: int) -> list[Chart]:
    """Draw on which step the items are lost that a side's combined list misses."""
    side, name = shown.pairs.sides[place], shown.names[place]
    steps = lost_where(side, shown.k)
    if not (total := sum(steps.values())):
        return []
    meanings = (f"{words}: {STEPS[words].format(k=shown.k, depth=DEPTH)}." for words in steps)
    chart = figure(
        share_chart,
        f"lost-{side.model}-{side.run.key}",
        f"Where {name} loses {total:,} items",
        f"Held-out items that are not in its first {shown.k}, by the step that loses them. "
        + " ".join(meanings),
        [*texts("row", "step"), *counts("queries"), *shares("share")],
        [("missed", words, count, count / total) for words, count in steps.items()],
        "label series - share",
        colors=colors_of(list(steps)),
        shown=lambda row: bool(row[2]),
        x_title="share of the queries",
        origins=origins([side]),
    )
    return [chart]


def _queries_table(shown: Contest, title: str) -> Table:
    """List the queries, the second side's greatest gains first."""
    first, second = shown.names
    return Table(
        key="queries",
        title=title,
        note=f"Rank of the held-out item by {first} and {second} (of the first 100; empty if it is "
        "not there). A user leads to the history and both lists.",
        columns=[
            *texts("user", "held-out item"),
            *counts("events before"),
            *counts(first, second, note="rank of the item"),
            *numbers("gain", format="signed", note="of the second side, by NDCG@100's discount"),
            *texts("outcome"),
        ],
        source="queries",
        origins=origins(shown.pairs.sides),
    )


def window_of_queries(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of queries."""
    shown = read_contest(context, query)
    if shown.pairs.features is None:
        raise NotFoundError(NO_FEATURES)
    titles = read_items(context, shown.pairs.features).select("item_row", "title")
    kept = shown.queries.join(titles, on="item_row", how="left", maintain_order="left")
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    if outcome != ALL:
        kept = kept.filter(pl.col("outcome") == outcome)
    if item := query.text("item"):
        kept = kept.filter(pl.col("item_id") == item)
    if text := window.search:
        kept = kept.filter(pl.col("user_id").str.contains(text, literal=True) | title_matches(text))
    # A rank that is not there is after all others.
    kept = kept.with_columns(pl.col("rank0", "rank1").replace(0, None))
    found: list[list[Cell | LinkedCell]] = []
    for one in cut_window(kept, window, COLUMNS, "gain").iter_rows(named=True):
        user = one["user_id"]
        link = Link(label="", page="why", parameters={**shown.parameters, "user": user})
        numbers_ = [one[name] for name in COLUMNS[1:-1]]
        found.append([LinkedCell(text=user, link=link), *numbers_, shown.labels[one["outcome"]]])
    return Rows(total=len(shown.pairs), found=len(kept), rows=found)


def _user_section(context: Context, shown: Contest, user_id: str) -> Section:
    """Show a user: the history, both lists, and the held-out item's rank by every model."""
    pairs = shown.pairs
    if pairs.features is None:
        raise NotFoundError(NO_FEATURES)
    items = read_items(context, pairs.features)
    row = user_row(pairs.features, user_id)
    sequences = Sequences.load(pairs.features / "sequences" / pairs.order)
    ends = sequences.validation_end if pairs.split == "test" else sequences.train_end
    past = slice(int(sequences.offsets[row]), int(ends[row]))
    seen = np.asarray(sequences.item_rows[past])[::-1].tolist()
    times = [None] * len(seen) if sequences.times is None else sequences.times[past][::-1]
    found = [read_answer(side, user_id) for side in pairs.sides]
    held_out = next((one["item_row"].to_list() for one in found if one is not None), [])

    def entry(item: int, *, words: str | None = None) -> Entry:
        item_id, title, note = item_words(items, item)
        parameters = {"run": pairs.sides[0].run.key, "item": item_id}
        link = Link(label="about this item", page="items", parameters=parameters)
        mark: Any = ""
        if words is None:
            mark = "hit" if item in held_out else "seen" if item in seen else ""
        return Entry(item_id=item_id, title=title, note=words or note, mark=mark, link=link)

    newest = [
        entry(item, words="" if time is None else f"{datetime.fromtimestamp(int(time), UTC):%F %R}")
        for item, time in zip(seen[:HISTORY], times[:HISTORY], strict=True)
    ]
    title = f"History, {len(seen):,} events, newest first"
    lists = [ItemList(title=title, entries=newest, empty="no event before the query")]
    for name, answer in zip(shown.names, found, strict=True):
        listed = [] if answer is None else answer["listed"][0].to_list()
        entries = [entry(item) for item in listed]
        lists.append(ItemList(title=name, entries=entries, empty="no list is kept"))
    titles = ", ".join(item_words(items, item)[1] for item in held_out) or "nothing"
    blocks: list[Block] = [
        Words(lines=[f"Held out: {titles}"]),
        Lists(key="user-lists", lists=lists, origins=origins(pairs.sides)),
        _ranks_table(pairs.sides, found),
    ]
    return Section(key="user", title=f"User {user_id}", blocks=blocks)


def read_answer(side: Side, user_id: str) -> pl.DataFrame | None:
    """Read ranks by all models and the list of a side for a user; None if it keeps none."""
    found = answers(side.run)
    if found.features is None:
        return None
    try:
        row = user_row(found.features, user_id)
    except NotFoundError:
        return None
    frame = pl.scan_parquet(found.table).filter(pl.col("user_row") == row)
    name = f"top_k_{side.model}"
    listed = pl.col(name) if name in frame.collect_schema() else pl.lit([])
    ranks = [f"{RANK}{model}" for model in found.models]
    part = frame.select("item_row", *ranks, listed.alias("listed")).collect()
    return None if part.is_empty() else part


def _ranks_table(sides: Sequence[Side], found: Sequence[pl.DataFrame | None]) -> Table:
    """Tabulate the best rank of a held-out item by every model of each run, sources included."""
    rows: dict[tuple[str, str], int | None] = {}
    for one, part in zip(sides, found, strict=True):
        for model in () if part is None else answers(one.run).models:
            rank = None if part is None else part[f"{RANK}{model}"].drop_nulls().to_list()
            rows[one.run.name, model] = min(rank) if rank else None
    ordered = sorted(rows.items(), key=lambda row: row[1] or 1 << 40)
    return Table(
        key="ranks",
        title="Rank of the held-out item by every model",
        note="Over the whole catalogue, without what the user knows; empty if the model does not "
        "score it. The blend and the ranker order what the sources found.",
        columns=[*texts("run", "model"), *counts("rank")],
        rows=[(run, model_label(model), rank) for (run, model), rank in ordered],
        origins=origins(sides),
    )


def exports(context: Context, query: Query) -> Sequence[Query]:
    """Export the page, and the users who gained and lost most."""
    try:
        shown = read_contest(context, query)
    except (NotFoundError, QueryError):
        return [query]
    if shown.pairs.features is None or not len(shown.queries):
        return [query]
    ordered = shown.queries.sort("gain")["user_id"]
    names = sorted({ordered[0], ordered[-1]})
    return [query, *(Query({**query.values, "user": (name,)}) for name in names)]


ENTRY = PageEntry(
    name="why",
    title="Why",
    build=build,
    rows={"queries": window_of_queries},
    suggest={"runs": suggest_runs},
    exports=exports,
    keeps=("run",),
)
