"""One user: history, both lists, where each model ranks the held-out item, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from pipelines.candidates.blends import BLEND_FAST
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import DEPTH, Side, Split, answers
from pipelines.dashboard.data.items import Catalogue, catalogue_of, history, user_row
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.why.outcomes import COMBINED
from pipelines.dashboard.why.shown import Shown
from pipelines.pages.columns import counts, texts
from pipelines.pages.document import (
    Block,
    Entry,
    ItemList,
    Link,
    Lists,
    Section,
    Table,
    Words,
)
from pipelines.pages.wins import RANK
from pipelines.pages.wording import model_label
from pipelines.ranking.artefact import RANKED
from recsys.data.dataset import Sequences
from recsys.models.names import SLOW_MODELS

HISTORY = 15
TOP = "top_k_"


class Answered(NamedTuple):
    """What a run's models answered for a user."""

    item_rows: list[int]
    """Held out."""
    ranks: Mapping[str, int | None]
    """Of the held-out item found best, by model."""
    lists: Mapping[str, list[int]]
    """Item rows of the chosen model's list."""


def user_section(context: Context, shown: Shown, user_id: str) -> Section:
    """Show a user.

    Raises:
        NotFoundError: The runs do not keep lists, or do not know the user.
    """
    if shown.features is None:
        raise NotFoundError("users are shown where a workspace keeps their histories and lists")
    catalogue = catalogue_of(context, shown.features)
    row = user_row(shown.features, user_id)
    sequences = Sequences.load(shown.features / "sequences" / shown.pairs.known.order)
    ends = sequences.validation_end if shown.split == "test" else sequences.train_end
    before = int(ends[row] - sequences.offsets[row])
    past = history(sequences, row, before)
    seen = {one.item_row for one in past}
    entries = [
        Entry(
            item_id=catalogue.item_id(one.item_row),
            title=catalogue.title(one.item_row),
            note=f"{one.time} \u00b7 {catalogue.categories[one.item_row]}".strip(" \u00b7"),
            link=item_link(shown, catalogue, one.item_row),
        )
        for one in past[:HISTORY]
    ]
    title = f"History, {len(past):,} events, newest first"
    lists = [ItemList(title=title, entries=entries, empty="no event before the query")]
    lines: list[str] = []
    held_out: list[int] = []
    for side, name in zip(shown.sides, shown.names, strict=True):
        answered = answered_by(side, shown.split, user_id)
        if answered is None:
            words = "a bundle keeps ranks, no lists; the page Try makes one"
            if side.run.kind != "bundle":
                words = "no list of this user is kept"
            lists.append(ItemList(title=name, empty=words))
            continue
        held_out = answered.item_rows
        lists.append(list_of(shown, name, answered, catalogue, seen))
        lines += why_lines(name, side.model, answered.ranks, shown.k)
    titles = ", ".join(catalogue.title(item) for item in held_out) or "nothing"
    known = [catalogue.note(item) for item in held_out[:1] if catalogue.note(item)]
    blocks: list[Block] = [
        Words(lines=[f"Held out: {titles}" + (f" ({known[0]})" if known else ""), *lines]),
        Lists(key="user-lists", lists=lists, origins=shown.origins),
        *ranks_tables(shown, user_id),
    ]
    return Section(key="user", title=f"User {user_id}", blocks=blocks)


def item_link(shown: Shown, catalogue: Catalogue, row: int) -> Link:
    """Lead to an item."""
    parameters = {"run": shown.sides[0].run.key, "item": catalogue.item_id(row)}
    return Link(label="about this item", page="items", parameters=parameters)


def list_of(
    shown: Shown, name: str, answered: Answered, catalogue: Catalogue, seen: set[int]
) -> ItemList:
    """Lay a list out, the held-out item and what the user knows marked."""
    rows = next(iter(answered.lists.values()), [])
    entries = []
    for row in rows:
        mark = "hit" if row in answered.item_rows else "seen" if row in seen else ""
        entries.append(
            Entry(
                item_id=catalogue.item_id(row),
                title=catalogue.title(row),
                note=catalogue.note(row),
                mark=mark,  # type: ignore[arg-type]
                link=item_link(shown, catalogue, row),
            )
        )
    model = next(iter(answered.lists), "")
    rank = answered.ranks.get(model)
    found = f"the held-out item is at {rank:,}" if rank else "the held-out item is not found"
    return ItemList(title=name, note=found, entries=entries, empty="it kept no list")


def answered_by(side: Side, split: Split, user_id: str) -> Answered | None:
    """Read what a run's models answered; None where it keeps no lists, or not of this user."""
    found = answers(side.run, split)
    if found.features is None:
        return None
    try:
        row = user_row(found.features, user_id)
    except NotFoundError:
        return None
    frame = pl.scan_parquet(found.table).filter(pl.col("user_row") == row)
    columns = [f"{RANK}{model}" for model in found.models]
    lists = [f"{TOP}{side.model}"] if f"{TOP}{side.model}" in frame.collect_schema() else []
    part = frame.select("item_row", *columns, *lists).collect()
    if part.is_empty():
        return None
    return Answered(
        item_rows=part["item_row"].to_list(),
        ranks={model: part[f"{RANK}{model}"].min() for model in found.models},  # type: ignore[misc]
        lists={one.removeprefix(TOP): part[one][0].to_list() for one in lists},
    )


def why_lines(name: str, model: str, ranks: Mapping[str, int | None], k: int) -> list[str]:
    """Say which source found the item, and what blend and ranker made of it."""
    if model not in COMBINED:
        return []
    left_out = (*COMBINED, *SLOW_MODELS) if model in (BLEND_FAST, RANKED) else COMBINED
    sources = {one: rank for one, rank in ranks.items() if one not in left_out and rank}
    if not sources or min(sources.values()) > DEPTH:
        return [f"{name}: no source has it in its first {DEPTH}."]
    best = min(sources, key=lambda one: sources[one])
    parts = [f"{model_label(best)} ranks it best, at {sources[best]:,}"]
    steps = [one for one in ((BLEND_FAST, model) if model == RANKED else (model,)) if one in ranks]
    before = sources[best]
    for step in steps:
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


def ranks_tables(shown: Shown, user_id: str) -> Sequence[Table]:
    """Tabulate the rank of the held-out item by every model of each run."""
    found = []
    for side in {one.run.key: one for one in shown.sides}.values():
        answered = answered_by(side, shown.split, user_id)
        if answered is None:
            continue
        order = sorted(answered.ranks, key=lambda model: answered.ranks[model] or 1 << 40)
        found.append(
            Table(
                key=f"ranks-{side.run.key}",
                title=f"Rank of the held-out item, {side.run.name}",
                note="Over the whole catalogue, without what the user knows; empty where the "
                "model does not score it.",
                columns=[*texts("model"), *counts("rank")],
                rows=[(model_label(model), answered.ranks[model]) for model in order],
                origins=[side.run.origin],
            )
        )
    return found
