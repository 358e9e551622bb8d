"""The controls of the page Try, and the options that they find as the reader types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.dashboard.ask.loading import Loading, loading_of
from pipelines.dashboard.ask.question import (
    KINDS,
    MAX_SESSION,
    MOST_K,
    Question,
    bundles_of,
)
from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.run import Run
from pipelines.pages.document import Control, Option
from serving.recommend import Recommender

FOUND = 20


def controls_of(context: Context, question: Question, states: Sequence[Loading]) -> list[Control]:
    """Offer bundles, who or what is meant, and the settings that the bundles have."""
    state = states[0] if states else None
    if context.exported:
        return [replace(_users(question, state), kind="select")] if state else []
    chosen = tuple(one.key for one in question.bundles)
    known = [one for one in context.stores.bundles() if one.status == "complete"]
    offered = {one.key: one for one in (*question.bundles, *known[:FOUND])}
    found = [
        Control(
            name="runs",
            label="Bundles, the second against the first",
            kind="several",
            value=chosen,
            options=[bundle_option(one) for one in offered.values()],
            suggest="bundles",
            at_most=2,
        )
    ]
    if state is None:
        return found
    kinds = [Option(value=name, label=label) for name, label in KINDS.items()]
    found.append(
        Control(
            name="for",
            label="For",
            kind="select",
            value=question.kind,
            options=kinds,
            clears=("user", "session", "item", "text"),
        )
    )
    found += _meant(question, state)
    found.append(
        Control(name="k", label="Items", kind="number", value=str(question.k), least=1, most=MOST_K)
    )
    if any("full" in one.profiles for one in states):
        options = [
            Option(value="fast", label="fast"),
            Option(value="full", label="full: generated items too"),
            Option(value="both", label="full against fast, of one bundle"),
        ]
        found.append(
            Control(
                name="profile",
                label="Profile",
                kind="select",
                value=question.profile,
                options=options,
            )
        )
    domains = sorted({name for one in states for name in one.recommender("fast").adapters.versions})
    found += _limit("domain", "Domain", question.domain, domains)
    return [*found, *_limit("category", "Category", question.category, state.categories)]


def _limit(name: str, label: str, value: str, known: Sequence[str]) -> list[Control]:
    if not known:
        return []
    options = [Option(value="", label="any"), *(Option(value=one, label=one) for one in known)]
    return [Control(name=name, label=label, kind="select", value=value, options=options)]


def _meant(question: Question, state: Loading) -> list[Control]:
    """Offer the user, the session, the item or the text, as what is meant needs."""
    recommender = state.recommender("fast")
    if question.kind == "text":
        typed = [Option(value=question.text, label=question.text)] if question.text else []
        return [
            Control(
                name="text",
                label="Search",
                kind="search",
                value=question.text,
                options=typed,
                suggest="texts",
            )
        ]
    if question.kind == "item":
        return [
            Control(
                name="item",
                label="Item",
                kind="search",
                value=question.item,
                options=[item_option(recommender, question.item)] if question.item else [],
                suggest="items",
            )
        ]
    session = Control(
        name="session",
        label="Session" if question.kind == "session" else "Then, in this visit",
        kind="several",
        value=question.session,
        options=[item_option(recommender, item) for item in question.session],
        suggest="items",
        at_most=MAX_SESSION,
    )
    return [session] if question.kind == "session" else [_users(question, state), session]


def _users(question: Question, state: Loading) -> Control:
    recommender = state.recommender("fast")
    users = dict.fromkeys((question.user, *state.typical))
    return Control(
        name="user",
        label="User",
        kind="search",
        value=question.user,
        options=[user_option(recommender, user) for user in users if user],
        suggest="users",
    )


def bundle_option(bundle: Run) -> Option:
    """Offer a bundle by its version."""
    served = " (served)" if "served" in bundle.tags else ""
    return Option(value=bundle.key, label=f"{bundle.name}{served}")


def user_option(recommender: Recommender, user_id: str) -> Option:
    """Offer a user by id, with the length of the history."""
    users = recommender.bundle.users
    row = users.row_of(user_id)
    number = len(users.history(row)) if row else 0
    return Option(value=user_id, label=f"{user_id} ({number:,} events)")


def item_option(recommender: Recommender, item_id: str) -> Option:
    """Offer an item by its title."""
    row = recommender.bundle.catalogue.row_of(item_id)
    title = recommender.cards.of(row).title if row else None
    return Option(value=item_id, label=title or item_id)


def _recommender(context: Context, query: Query) -> tuple[Loading, Recommender] | None:
    """Take the first bundle if it is in memory; nothing is found before."""
    for bundle in bundles_of(context, query):
        state = loading_of(context, bundle)
        if state.wait(0) and not state.error:
            return state, state.recommender("fast")
    return None


def suggest_bundles(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find bundles by a part of their version or data."""
    wanted = text.casefold()
    found = [
        one
        for one in context.stores.bundles()
        if one.status == "complete" and wanted in f"{one.name} {one.dataset} {one.path}".casefold()
    ]
    return [bundle_option(one) for one in found[:FOUND]]


def suggest_users(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find users whose id begins with a text."""
    found = _recommender(context, query)
    if found is None:
        return []
    state, recommender = found
    users = state.users.beginning_with(text, FOUND) if text else state.typical
    return [user_option(recommender, user) for user in users]


def suggest_items(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find items by the words of their titles, or by their id."""
    found = _recommender(context, query)
    if found is None:
        return []
    recommender = found[1]
    catalogue = recommender.bundle.catalogue
    rows = recommender.titles.search(text, FOUND)
    by_id = catalogue.row_of(text)
    rows = list(dict.fromkeys([*([by_id] if by_id else []), *rows]))[:FOUND]
    return [item_option(recommender, catalogue.item_ids[row]) for row in rows]


def suggest_texts(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Offer what is typed as it stands, then titles."""
    typed = [Option(value=text, label=text)] if text.strip() else []
    titles = [
        Option(value=one.label[:200], label=one.label)
        for one in suggest_items(context, query, text)
    ]
    return [*typed, *titles][:FOUND]
