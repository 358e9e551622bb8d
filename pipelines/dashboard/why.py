"""Page ``why``: who won and lost between two models, and why one user did.

Axes: M queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from features.schema import GIVEN
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import LISTED, Side, answers
from pipelines.dashboard.data.items import (
    cut_window,
    item_words,
    past_events,
    read_items,
    title_matches,
    user_row,
)
from pipelines.dashboard.data.pairs import Pairs, join_pairs
from pipelines.dashboard.data.sides import (
    choose_sides,
    controls,
    k_control,
    newest_with_lists,
    origins,
    pair_parameters,
    side_name,
    suggest_runs,
)
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.evaluation.analysis import RANK
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
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
    Window,
    Words,
    select,
)
from pipelines.pages.wording import model_label
from recsys.data.dataset import Sequences

ALL = "all"
OUTCOMES = ("both", "first", "second", "neither")
HISTORY = 15
"""Newest events of a user that are listed."""
COLUMNS = ("user_id", "title", "place", "rank0", "rank1", "gain", "outcome")
NO_FEATURES = "users are shown if a workspace keeps their histories and lists"


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
        newest = newest_with_lists(context)
        query = Query({**query.values, "run": (newest.key,)})
    sides = choose_sides(context, query, at_most=2)
    pairs = join_pairs(context, sides)
    k = query.number("k", 10, least=1, most=LISTED)
    first, second = (pl.col(rank).is_between(1, k) for rank in ("rank0", "rank1"))
    outcome = pl.when(first & second).then(0).when(first).then(1).when(second).then(2).otherwise(3)
    worth = [
        pl.when(pl.col(rank) > 0).then(1 / (1 + pl.col(rank).cast(pl.Float64)).log(2)).otherwise(0)
        for rank in ("rank0", "rank1")
    ]
    named = outcome.replace_strict(dict(enumerate(OUTCOMES)), return_dtype=pl.String)
    return Contest(
        pairs=pairs,
        names=(side_name(sides[0], sides), side_name(sides[1], sides)),
        k=k,
        queries=pairs.queries.with_columns(outcome=named, gain=worth[1] - worth[0]),
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
    both, one, other, none = (f"{counted.get(name, 0):,}" for name in OUTCOMES)
    blocks: list[Block] = []
    notices = []
    if user_id := query.text("user"):
        try:
            blocks.append(_user_section(context, shown, user_id))
        except NotFoundError as error:
            notices.append(str(error))
    if shown.pairs.features is not None:
        blocks.append(_queries_table(shown, shown.labels.get(outcome, "All queries")))
    return Page(
        title=f"Why: {first} or {second}",
        lead=f"Of {len(shown.pairs):,} held-out items, {one} are in the first {shown.k} of {first} "
        f"alone, {other} in those of {second} alone, {both} in both and {none} in neither.",
        blocks=blocks,
        controls=[
            *own,
            k_control(shown.k, LISTED),
            select("outcome", "Queries", outcome, {ALL: "all", **shown.labels}),
        ],
        notices=notices,
    )


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
    sequences = Sequences.load(pairs.features / "sequences" / GIVEN)
    past = past_events(sequences, row, pairs.split)
    seen = np.asarray(sequences.item_rows[past])[::-1].tolist()
    times = [None] * len(seen) if sequences.times is None else sequences.times[past][::-1]
    found = [read_answer(side, user_id) for side in pairs.sides]
    held_out = next((one["item_row"].to_list() for one in found if one is not None), [])

    def entry(item: int, *, words: str | None = None) -> Entry:
        item_id, title, note = item_words(items, item)
        mark: Any = ""
        if words is None:
            mark = "hit" if item in held_out else "seen" if item in seen else ""
        return Entry(item_id=item_id, title=title, note=words or note, mark=mark)

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


ENTRY = PageEntry(
    name="why",
    title="Why",
    build=build,
    rows={"queries": window_of_queries},
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
