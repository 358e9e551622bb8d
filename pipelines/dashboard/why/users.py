"""Users on the page why: the table of queries, and one user's history, lists and ranks.

Axes: M queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND_FAST, RANKED
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import DEPTH, Side, answers
from pipelines.dashboard.data.items import (
    RunCatalogue,
    history,
    read_catalogue,
    user_ids,
    user_row,
    users_matching,
)
from pipelines.dashboard.data.windows import window_rows
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.why.outcomes import COMBINED, OUTCOMES, Contest, gain, read_contest
from pipelines.evaluation.per_user import RANK
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Entry,
    ItemList,
    Link,
    LinkedCell,
    Lists,
    Rows,
    Section,
    Table,
    Window,
    Words,
)
from pipelines.pages.wording import model_label
from recsys.data.dataset import Sequences
from recsys.models.names import SLOW_MODELS

ALL = "all"
NOWHERE = 255
"""Sorts a rank that is not there after all others."""
HISTORY = 15
TOP = "top_k_"
NO_FEATURES = "users are shown if a workspace keeps their histories and lists"


def queries_table(shown: Contest, title: str) -> Table:
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
        origins=shown.origins,
    )


def window_of_queries(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of queries."""
    shown = read_contest(context, query)
    if shown.features is None:
        raise NotFoundError(NO_FEATURES)
    known, catalogue = shown.pairs.known, read_catalogue(context, shown.features)
    kept = _kept(shown, catalogue, query, window.search)
    ranks = (np.where(one == 0, NOWHERE, one) for one in known.ranks[:2])
    queries, gains = (known.user_rows, known.item_rows, known.places), gain(known)
    part = window_rows(kept, (*queries, *ranks, gains, shown.outcomes), window, 5)
    names, labels = (
        user_ids(shown.features, known.user_rows[part].tolist()),
        [*shown.labels.values()],
    )
    found: list[list[Cell | LinkedCell]] = []
    for place in part.tolist():
        user = names.get(int(known.user_rows[place]))
        link = Link(label="", page="why", parameters={**shown.parameters, "user": user or ""})
        found.append(
            [
                "not known" if user is None else LinkedCell(text=user, link=link),
                catalogue.title(int(known.item_rows[place])),
                int(known.places[place]),
                *(int(one[place]) or None for one in known.ranks[:2]),
                float(gains[place]),
                labels[shown.outcomes[place]],
            ]
        )
    return Rows(total=len(known), found=len(kept), rows=found)


def _kept(shown: Contest, catalogue: RunCatalogue, query: Query, text: str) -> NDArray[np.int64]:
    """Find the queries that the filters and the search leave."""
    known, features = shown.pairs.known, shown.features
    keep = np.ones(len(known), np.bool_)
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    if outcome != ALL:
        keep &= shown.outcomes == OUTCOMES.index(outcome)
    if item := query.text("item"):
        keep &= known.item_rows == (catalogue.row_of(item) or -1)
    if text and features is not None:
        titles, rows = catalogue.matching(text), known.item_rows
        inside = (rows > 0) & (rows < len(titles))
        found = np.isin(known.user_rows, users_matching(features, text).to_numpy())
        found[inside] |= titles[rows[inside]]
        keep &= found
    return np.flatnonzero(keep)


def example_users(shown: Contest) -> list[str]:
    """Return the users who gain and who lose most."""
    known = shown.pairs.known
    if shown.features is None or not len(known):
        return []
    gains = gain(known)
    rows = {int(known.user_rows[place]) for place in (gains.argmax(), gains.argmin())}
    return sorted(user_ids(shown.features, sorted(rows)).values())


class UserAnswer(NamedTuple):
    """Answer of a run's models for one user."""

    item_rows: list[int]
    ranks: Mapping[str, int | None]
    """Rank of the held-out item found best, by model."""
    listed: list[int]
    """Item rows of the chosen model's list; empty if none is kept."""


def user_section(context: Context, shown: Contest, user_id: str) -> Section:
    """Show a user: the history, both lists, and the held-out item's rank by every model."""
    if shown.features is None:
        raise NotFoundError(NO_FEATURES)
    catalogue = read_catalogue(context, shown.features)
    row = user_row(shown.features, user_id)
    sequences = Sequences.load(shown.features / "sequences" / shown.pairs.known.order)
    ends = sequences.validation_end if shown.pairs.known.split == "test" else sequences.train_end
    past = history(sequences, row, int(ends[row] - sequences.offsets[row]))
    found = [read_answer(side, user_id) for side in shown.sides]
    held_out = next((one.item_rows for one in found if one is not None), [])
    known = {"seen": {item for item, _ in past}, "hit": {*held_out}}

    def entry(item: int, note: str, marks: Sequence[str] = ()) -> Entry:
        item_id = catalogue.item_id(item)
        parameters = {"run": shown.sides[0].run.key, "item": item_id}
        link = Link(label="about this item", page="items", parameters=parameters)
        mark: Any = next((one for one in marks if item in known[one]), "")
        return Entry(item_id=item_id, title=catalogue.title(item), note=note, mark=mark, link=link)

    entries = [
        entry(item, f"{time} \u00b7 {catalogue.categories[item]}".strip(" \u00b7"))
        for item, time in past[:HISTORY]
    ]
    title = f"History, {len(past):,} events, newest first"
    lists = [ItemList(title=title, entries=entries, empty="no event before the query")]
    titles = ", ".join(catalogue.title(item) for item in held_out) or "nothing"
    note = next((f" ({text})" for item in held_out[:1] if (text := catalogue.note(item))), "")
    lines = [f"Held out: {titles}{note}"]
    tables: dict[str, Table] = {}
    for side, name, answer in zip(shown.sides, shown.names, found, strict=True):
        if answer is None:
            is_bundle = side.run.kind == "bundle"
            words = "a bundle keeps ranks, no lists" if is_bundle else "no list is kept"
            lists.append(ItemList(title=name, empty=words))
            continue
        rank = answer.ranks.get(side.model)
        entries = [entry(item, catalogue.note(item), ("hit", "seen")) for item in answer.listed]
        words = f"the held-out item is at {rank:,}" if rank else "the held-out item is not found"
        lists.append(ItemList(title=name, note=words, entries=entries, empty="it kept no list"))
        lines += why_lines(name, side.model, answer.ranks, shown.k)
        tables[side.run.key] = ranks_table(side, answer)
    blocks: list[Block] = [
        Words(lines=lines),
        Lists(key="user-lists", lists=lists, origins=shown.origins),
        *tables.values(),
    ]
    return Section(key="user", title=f"User {user_id}", blocks=blocks)


def read_answer(side: Side, user_id: str) -> UserAnswer | None:
    """Read the answer of a run's models; None if it keeps no lists, or none of this user."""
    found = answers(side.run)
    if found.features is None:
        return None
    try:
        row = user_row(found.features, user_id)
    except NotFoundError:
        return None
    frame = pl.scan_parquet(found.table).filter(pl.col("user_row") == row)
    listed = [f"{TOP}{side.model}"] if f"{TOP}{side.model}" in frame.collect_schema() else []
    ranks = [f"{RANK}{model}" for model in found.models]
    part = frame.select("item_row", *ranks, *listed).collect()
    if part.is_empty():
        return None
    best = part.select(pl.col(ranks).min()).row(0)
    return UserAnswer(
        item_rows=part["item_row"].to_list(),
        ranks=dict(zip(found.models, best, strict=True)),
        listed=part[listed[0]][0].to_list() if listed else [],
    )


def why_lines(name: str, model: str, ranks: Mapping[str, int | None], k: int) -> list[str]:
    """Explain which source found the item, and how blend and ranker moved it."""
    if model not in COMBINED:
        return []
    left_out = (*COMBINED, *SLOW_MODELS) if model in (BLEND_FAST, RANKED) else COMBINED
    sources = {one: rank for one, rank in ranks.items() if one not in left_out and rank}
    best = min(sources, key=lambda one: sources[one], default="")
    if not best or sources[best] > DEPTH:
        return [f"{name}: no source has it in its first {DEPTH}."]
    before = sources[best]
    parts = [f"{model_label(best)} ranks it best, at {before:,}"]
    steps = (BLEND_FAST, model) if model == RANKED else (model,)
    for step in (one for one in steps if one in ranks):
        rank = ranks[step]
        made = "the ranker" if step == RANKED else "the blend"
        if rank is None:
            parts.append(f"{made} does not list it")
        else:
            moved = "lifts it to" if rank < before else "drops it to"
            parts.append(f"{made} {'keeps it at' if rank == before else moved} {rank:,}")
            before = rank
    end = ranks[model]
    missed = "" if end is not None and end <= k else f": not in the first {k}"
    return [f"{name}: {', '.join(parts)}{missed}."]


def ranks_table(side: Side, answer: UserAnswer) -> Table:
    """Tabulate the rank of the held-out item by every model of a run."""
    order = sorted(answer.ranks, key=lambda model: answer.ranks[model] or 1 << 40)
    return Table(
        key=f"ranks-{side.run.key}",
        title=f"Rank of the held-out item, {side.run.name}",
        note="Over the whole catalogue, without what the user knows; empty if the model does not "
        "score it.",
        columns=[*texts("model"), *counts("rank")],
        rows=[(model_label(model), answer.ranks[model]) for model in order],
        origins=[side.run.origin],
    )
