"""Users on the page why: the table of queries, and one user's history, lists and ranks.

Axes: M queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND_FAST
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import DEPTH, Side, Split, answers
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
from pipelines.pages.wins import RANK
from pipelines.pages.wording import model_label
from pipelines.ranking.artefact import RANKED
from recsys.data.dataset import Sequences
from recsys.models.names import SLOW_MODELS

ALL = "all"
NOWHERE = 255
"""Sorts a rank that is not there after all others."""
EXPORTED = 25


def queries_table(context: Context, shown: Contest, query: Query, title: str) -> Table:
    """List the queries, the second side's greatest gains first."""
    first, second = shown.names
    file = context.exported
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
        source=None if file else "queries",
        rows=list_rows(context, shown, query, Window(length=EXPORTED)).rows if file else (),
        origins=shown.origins,
    )


def window_of_queries(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of queries."""
    return list_rows(context, read_contest(context, query), query, window)


def list_rows(context: Context, shown: Contest, query: Query, window: Window) -> Rows:
    """Return a window of the queries."""
    kept = _kept(context, shown, query, window.search)
    known = shown.pairs.known
    ranks = (np.where(one == 0, NOWHERE, one) for one in known.ranks[:2])
    queries = (known.user_rows, known.item_rows, known.places)
    part = window_rows(kept, (*queries, *ranks, gain(known), shown.outcomes), window, 5)
    return Rows(total=len(known), found=len(kept), rows=_cells(context, shown, part))


def example_users(shown: Contest) -> list[str]:
    """Return the users who gain and who lose most."""
    known = shown.pairs.known
    if shown.features is None or not len(known):
        return []
    gains = gain(known)
    rows = {int(known.user_rows[place]) for place in (gains.argmax(), gains.argmin())}
    return sorted(user_ids(shown.features, sorted(rows)).values())


def _kept(context: Context, shown: Contest, query: Query, text: str) -> NDArray[np.int64]:
    """Find the queries that the filters and the search leave."""
    known, features = shown.pairs.known, shown.features
    keep = np.ones(len(known), np.bool_)
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    if outcome != ALL:
        keep &= shown.outcomes == OUTCOMES.index(outcome)
    if features is not None and (item := query.text("item")):
        keep &= known.item_rows == (read_catalogue(context, features).row_of(item) or -1)
    if features is not None and text:
        titles = read_catalogue(context, features).matching(text)
        rows = known.item_rows
        inside = (rows > 0) & (rows < len(titles))
        found = np.isin(known.user_rows, users_matching(features, text).to_numpy())
        found[inside] |= titles[rows[inside]]
        keep &= found
    return np.flatnonzero(keep)


def _cells(
    context: Context, shown: Contest, places: NDArray[np.int64]
) -> list[list[Cell | LinkedCell]]:
    known, features = shown.pairs.known, shown.features
    rows = known.user_rows[places].tolist()
    names = {} if features is None else user_ids(features, rows)
    catalogue = None if features is None else read_catalogue(context, features)
    gains, labels = gain(known)[places], [*shown.labels.values()]
    found: list[list[Cell | LinkedCell]] = []
    for number, place in enumerate(places.tolist()):
        user = names.get(rows[number])
        link = Link(label="", page="why", parameters={**shown.parameters, "user": user or ""})
        title = "not known" if catalogue is None else catalogue.title(int(known.item_rows[place]))
        found.append(
            [
                "not known" if user is None else LinkedCell(text=user, link=link),
                title,
                int(known.places[place]),
                *(int(one[place]) or None for one in known.ranks[:2]),
                float(gains[number]),
                labels[shown.outcomes[place]],
            ]
        )
    return found


HISTORY = 15
TOP = "top_k_"


class Answer(NamedTuple):
    """Answer of a run's models for one user."""

    item_rows: list[int]
    ranks: Mapping[str, int | None]
    """Rank of the held-out item found best, by model."""
    listed: list[int]
    """Item rows of the chosen model's list; empty if none is kept."""


def user_section(context: Context, shown: Contest, user_id: str) -> Section:
    """Show a user."""
    if shown.features is None:
        raise NotFoundError("users are shown if a workspace keeps their histories and lists")
    catalogue = read_catalogue(context, shown.features)
    row = user_row(shown.features, user_id)
    sequences = Sequences.load(shown.features / "sequences" / shown.pairs.known.order)
    ends = sequences.validation_end if shown.split == "test" else sequences.train_end
    past = history(sequences, row, int(ends[row] - sequences.offsets[row]))
    found = [read_answer(side, shown.split, user_id) for side in shown.sides]
    held_out = next((one.item_rows for one in found if one is not None), [])
    entries = [
        build_entry(
            shown,
            catalogue,
            one.item_row,
            f"{one.time} \u00b7 {catalogue.categories[one.item_row]}".strip(" \u00b7"),
        )
        for one in past[:HISTORY]
    ]
    title = f"History, {len(past):,} events, newest first"
    lists = [ItemList(title=title, entries=entries, empty="no event before the query")]
    titles = ", ".join(catalogue.title(item) for item in held_out) or "nothing"
    note = next((f" ({text})" for item in held_out[:1] if (text := catalogue.note(item))), "")
    lines = [f"Held out: {titles}{note}"]
    tables: dict[str, Table] = {}
    for side, name, answer in zip(shown.sides, shown.names, found, strict=True):
        if answer is None:
            words = "a bundle keeps ranks, no lists; the page Try makes one"
            if side.run.kind != "bundle":
                words = "no list of this user is kept"
            lists.append(ItemList(title=name, empty=words))
            continue
        seen = {one.item_row for one in past}
        rank = answer.ranks.get(side.model)
        entries = [
            build_entry(
                shown,
                catalogue,
                item,
                catalogue.note(item),
                "hit" if item in answer.item_rows else "seen" if item in seen else "",
            )
            for item in answer.listed
        ]
        note = f"the held-out item is at {rank:,}" if rank else "the held-out item is not found"
        lists.append(ItemList(title=name, note=note, entries=entries, empty="it kept no list"))
        lines += why_lines(name, side.model, answer.ranks, shown.k)
        tables[side.run.key] = ranks_table(side, answer)
    blocks: list[Block] = [
        Words(lines=lines),
        Lists(key="user-lists", lists=lists, origins=shown.origins),
        *tables.values(),
    ]
    return Section(key="user", title=f"User {user_id}", blocks=blocks)


def build_entry(
    shown: Contest, catalogue: RunCatalogue, row: int, note: str, mark: str = ""
) -> Entry:
    """Show an item of a list, with a link to its page."""
    parameters = {"run": shown.sides[0].run.key, "item": catalogue.item_id(row)}
    return Entry(
        item_id=catalogue.item_id(row),
        title=catalogue.title(row),
        note=note,
        mark=mark,  # type: ignore[arg-type]
        link=Link(label="about this item", page="items", parameters=parameters),
    )


def read_answer(side: Side, split: Split, user_id: str) -> Answer | None:
    """Read the answer of a run's models; None if it keeps no lists, or none of this user."""
    found = answers(side.run, split)
    if found.features is None:
        return None
    try:
        row = user_row(found.features, user_id)
    except NotFoundError:
        return None
    frame = pl.scan_parquet(found.table).filter(pl.col("user_row") == row)
    columns = [f"{RANK}{model}" for model in found.models]
    list_ = f"{TOP}{side.model}"
    has_list = list_ in frame.collect_schema()
    part = frame.select("item_row", *columns, *([list_] if has_list else [])).collect()
    if part.is_empty():
        return None
    return Answer(
        item_rows=part["item_row"].to_list(),
        ranks={model: part[f"{RANK}{model}"].min() for model in found.models},  # type: ignore[misc]
        listed=part[list_][0].to_list() if has_list else [],
    )


def why_lines(name: str, model: str, ranks: Mapping[str, int | None], k: int) -> list[str]:
    """Explain which source found the item, and how blend and ranker moved it."""
    if model not in COMBINED:
        return []
    left_out = (*COMBINED, *SLOW_MODELS) if model in (BLEND_FAST, RANKED) else COMBINED
    sources = {one: rank for one, rank in ranks.items() if one not in left_out and rank}
    if not sources or min(sources.values()) > DEPTH:
        return [f"{name}: no source has it in its first {DEPTH}."]
    best = min(sources, key=lambda one: sources[one])
    parts = [f"{model_label(best)} ranks it best, at {sources[best]:,}"]
    before = sources[best]
    for step in (BLEND_FAST, model) if model == RANKED else (model,):
        if step not in ranks:
            continue
        rank = ranks[step]
        made = "the ranker" if step == RANKED else "the blend"
        if rank is None:
            parts.append(f"{made} does not list it")
        else:
            verb = "lifts" if rank < before else "keeps" if rank == before else "drops"
            parts.append(f"{made} {verb} it {'at' if verb == 'keeps' else 'to'} {rank:,}")
            before = rank
    end = ranks[model]
    missed = "" if end is not None and end <= k else f": not in the first {k}"
    return [f"{name}: {', '.join(parts)}{missed}."]


def ranks_table(side: Side, answer: Answer) -> Table:
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
