"""The page Try: two bundles, or the two profiles of one, side by side.

They answer for a user, a session, an item or a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.dashboard.ask.answers import Answer, answers_of, differences
from pipelines.dashboard.ask.controls import (
    controls_of,
    suggest_bundles,
    suggest_items,
    suggest_texts,
    suggest_users,
)
from pipelines.dashboard.ask.lists import Place, kendall, overlap, places
from pipelines.dashboard.ask.loading import AT_ONCE, Loading, loading_of
from pipelines.dashboard.ask.question import (
    NO_BUNDLES,
    Question,
    bundle_of,
    bundles_of,
    loaded,
)
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Entry,
    ItemList,
    Link,
    LinkedCell,
    Lists,
    Page,
    Table,
    Tile,
    Tiles,
    Words,
)
from pipelines.pages.wording import model_label
from serving.recommend import Recommender
from serving.web.lookup import past_items

TITLE = "Try"
SHOWN_PAST = 10
NUM_SHARES = 3
CLICK = "Choose an item in a list to add it to the session; the lists are then made anew."
REFRESH = 1.0


def build(context: Context, query: Query) -> Page:
    """Show what the bundles answer."""
    if not any(one.status == "complete" for one in context.stores.bundles()):
        return Page(
            title=TITLE, lead="There is no bundle to try.", blocks=[Words(lines=[NO_BUNDLES])]
        )
    question = Question.of(context, query)
    states = [loading_of(context, bundle) for bundle in question.bundles]
    # A file cannot be loaded anew, so it waits.
    waiting = [one for one in states if not one.wait(None if context.exported else AT_ONCE)]
    if waiting:
        return _loading(waiting)
    notices = [
        f"{bundle.name} cannot be loaded: {state.error}"
        for bundle, state in zip(question.bundles, states, strict=True)
        if state.error
    ]
    there = loaded(states)
    if not there:
        return Page(
            title=TITLE,
            lead="No chosen bundle can be loaded.",
            blocks=[],
            controls=controls_of(context, question, there),
            notices=notices,
        )
    question = _with_somebody(question, there[0])
    controls = controls_of(context, question, there)
    if not question.is_complete:
        words = {"item": "Choose an item to see what is like it.", "text": "Type what is searched."}
        lead = words.get(question.kind, "")
        return Page(title=TITLE, lead=lead, blocks=[], controls=controls, notices=notices)
    answers = answers_of(question, states)
    return Page(
        title=TITLE,
        lead=_lead(question, answers),
        blocks=_blocks(context, question, answers),
        controls=controls,
        notices=notices,
    )


def _loading(waiting: Sequence[Loading]) -> Page:
    names = " and ".join(one.path.name for one in waiting)
    words = "Its files are verified and read; this page refreshes by itself."
    return Page(
        title=TITLE,
        lead=f"Loading {names} \u2026",
        blocks=[Words(lines=[words], tone="note")],
        refresh_seconds=REFRESH,
    )


def _with_somebody(question: Question, state: Loading) -> Question:
    """Take a typical user where nobody is named."""
    if question.kind != "user" or question.user:
        return question
    return replace(question, user=next(iter(state.typical), ""))


def _lead(question: Question, answers: Sequence[Answer]) -> str:
    meant = {
        "user": f"the user {question.user}" if question.user else "a visitor without a history",
        "session": f"a session of {len(question.session)} items",
        "item": f"what is like the item {question.item}",
        "text": f"the search {question.text!r}",
    }[question.kind]
    if question.kind == "user" and question.session:
        meant += f" who has just seen {len(question.session)} items"
    names = " and ".join(one.name for one in answers)
    return f"The first {question.k} for {meant}, by {names}."


def _blocks(context: Context, question: Question, answers: Sequence[Answer]) -> list[Block]:
    first = answers[0]
    found = places(first.ids, answers[1].ids) if len(answers) == 2 else places(first.ids, [])
    blocks: list[Block] = []
    if len(answers) == 2:
        blocks += [
            _tiles(first, answers[1], question.k),
            Words(lines=differences(first, answers[1], question.k)),
        ]
    if not context.exported:
        blocks.append(Words(lines=[CLICK], tone="note"))
    blocks.append(_lists(context, question, answers, found))
    if any(one.ids for one in answers):
        blocks.append(_items(context, question, answers, found))
    blocks.append(_timings(answers))
    return blocks


def _tiles(first: Answer, second: Answer, k: int) -> Tiles:
    tiles = []
    for length in sorted({min(5, k), min(10, k), k}):
        share = overlap(first.ids, second.ids, length)
        tiles.append(
            Tile(label=f"Overlap@{length}", value="\u2013" if share is None else f"{share:.0%}")
        )
    tau = kendall(first.ids, second.ids)
    tiles.append(
        Tile(
            label="Rank correlation",
            value="\u2013" if tau is None else f"{tau:.2f}",
            note="Kendall's tau of the items in both; 1: the same order",
        )
    )
    return Tiles(tiles=tiles)


def _lists(
    context: Context, question: Question, answers: Sequence[Answer], found: Sequence[Place]
) -> Lists:
    by_item = {one.item_id: one for one in found}
    lists = [_history(context, question, answers[0].recommender)]
    for second, answer in enumerate(answers):
        title = f"{answer.name}{' (served)' if 'served' in answer.bundle.tags else ''}"
        lists.append(
            ItemList(
                title=title,
                note="; ".join(answer.notes),
                entries=[
                    _entry(context, question, answers, by_item[item.item_id], bool(second), rank)
                    for rank, item in enumerate(answer.items)
                ],
                empty=answer.refused or "no items",
            )
        )
    return Lists(
        key="lists",
        lists=[one for one in lists if one.entries or one.title != "History"],
        origins=[answer.bundle.origin for answer in answers],
    )


def _history(context: Context, question: Question, recommender: Recommender) -> ItemList:
    """Show what the lists are made from: the session, then what the user had, latest first."""
    bundle = recommender.bundle
    entries = []
    row_of = bundle.catalogue.row_of
    sent = [question.item] if question.kind == "item" else [*reversed(question.session)]
    if question.kind == "text":
        sent = []
    for item_id in sent:
        row = row_of(item_id)
        title = recommender.cards.of(row).title if row else None
        note = "in the session" if question.kind != "item" else ""
        entries.append(Entry(item_id=item_id, title=title or item_id, note=note))
    user_row = bundle.users.row_of(question.user) if question.kind == "user" else None
    total = 0
    if user_row:
        total = len(bundle.users.history(user_row))
        entries += [
            Entry(
                item_id=past.item_id,
                title=past.title or past.item_id,
                note=", ".join(past.categories or ()),
            )
            for past in past_items(recommender, user_row, SHOWN_PAST)
        ]
    note = f"the latest {SHOWN_PAST} of {total:,} events" if total > SHOWN_PAST else ""
    if user_row:
        note += f"{', ' if note else ''}as of the release"
    return ItemList(title="History", note=note, entries=entries)


def _entry(
    context: Context,
    question: Question,
    answers: Sequence[Answer],
    place: Place,
    is_second: bool,
    rank: int,
) -> Entry:
    """Describe an item of a list, and what became of it in the other one."""
    answer = answers[int(is_second)]
    item = answer.items[rank]
    mark, moved = "", ""
    if len(answers) == 2:
        by = place.moved
        if by is None:
            mark, moved = ("new", "only here") if is_second else ("gone", "only here")
        elif by and is_second:
            mark = "moved_up" if by > 0 else "moved_down"
            moved = f"{'up' if by > 0 else 'down'} {abs(by)}, from {place.first}"
    if item.item_id in answer.seen:
        mark, moved = "seen", f"seen before{', ' if moved else ''}{moved}"
    parts = [
        moved,
        f"{model_label(item.source)} {item.score:.3g}",
        item.reason or "",
        f"ID {item.semantic_id}" if item.semantic_id else "",
    ]
    return Entry(
        item_id=item.item_id,
        title=item.title or item.item_id,
        note=" \u00b7 ".join(part for part in parts if part),
        mark=mark,  # type: ignore[arg-type]
        link=None if context.exported else question.with_item(item.item_id),
    )


def _items(
    context: Context, question: Question, answers: Sequence[Answer], found: Sequence[Place]
) -> Table:
    """List every item with its places, sources and reasons."""
    has_why = question.kind == "user" and bool(question.user) and not context.exported
    of = [{item.item_id: item for item in answer.items} for answer in answers]
    rows: list[Sequence[Cell | LinkedCell]] = []
    for place in found:
        items = [one.get(place.item_id) for one in of]
        any_ = next(one for one in items if one is not None)
        link = Link(label="item", page="items", parameters={"item": place.item_id})
        row: list[Cell | LinkedCell] = [LinkedCell(text=any_.title or any_.item_id, link=link)]
        row += [place.first, place.second, place.moved] if len(answers) == 2 else [place.first]
        for item in items:
            shares = list(((item.contributions or {}) if item else {}).items())[:NUM_SHARES]
            row.append(", ".join(f"{model_label(name)} {share:.0%}" for name, share in shares))
        row.append(any_.reason)
        row += [item.semantic_id if item else None for item in items]
        if has_why:
            why = {"user": question.user, "item": place.item_id}
            row.append(LinkedCell(text="why", link=Link(label="why", page="why", parameters=why)))
        rows.append(row)
    names = [answer.name for answer in answers]
    moved = [Column(label="moved up", numeric=True, note="Places up in the second list.")]
    return Table(
        key="items",
        title="Every item",
        note="Places in both lists, the largest shares of the score by source, and the reason.",
        columns=(
            Column(label="item"),
            *(Column(label=f"place, {name}", numeric=True, format="count") for name in names),
            *(moved if len(names) == 2 else ()),
            *(Column(label=f"sources, {name}") for name in names),
            Column(label="reason"),
            *(Column(label=f"semantic ID, {name}") for name in names),
            *([Column(label="why", note="The user's held-out query.")] if has_why else []),
        ),
        rows=rows,
        page_length=25,
        origins=[answer.bundle.origin for answer in answers],
    )


def _timings(answers: Sequence[Answer]) -> Table:
    made = [(one.name, one.made.reply.timings_ms) for one in answers if one.made]
    stages = dict.fromkeys(stage for _, timings in made for stage in timings)
    return Table(
        key="timings",
        title="Milliseconds by stage",
        note="Of these very lists, made one after the other in the dashboard's process.",
        columns=(Column(label="stage"), *(Column(label=name, numeric=True) for name, _ in made)),
        rows=[(stage, *(timings.get(stage) for _, timings in made)) for stage in stages],
    )


def exports(context: Context, query: Query) -> list[Query]:
    """Name the lists of a few typical users, which a file holds.

    Raises:
        NotFoundError: The run has no bundle, or it cannot be loaded.
    """
    keys = query.values.get("runs", ())[:2]
    if not keys:
        bundle_of(context, context.stores.run(query.text("run")))
    bundles = bundles_of(context, Query.of(run=query.text("run"), runs=keys))
    state = loading_of(context, bundles[0])
    state.wait(None)
    if state.error:
        raise NotFoundError(f"{bundles[0].name} cannot be loaded: {state.error}")
    chosen = tuple(one.key for one in bundles)
    return [Query.of(runs=chosen, user=user) for user in state.typical]


ENTRY = PageEntry(
    name="ask",
    title=TITLE,
    build=build,
    suggest={
        "bundles": suggest_bundles,
        "users": suggest_users,
        "items": suggest_items,
        "texts": suggest_texts,
    },
    exports=exports,
    keeps=("run",),
)
