"""Explanations as sentences, from templates.

They say the parts of the score, what of the history mattered, and what both share: nothing that was
not measured or looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recsys.models.names import CONTENT, MODELS, POPULARITY
from serving.bundle.load import Bundle
from serving.explanation.removal import DEPTH, LOST, Influence
from serving.schemas import WhyNotCode
from serving.surfaces import SEARCH

BY_SOURCE = {**{one.name: one.explanation for one in MODELS}, SEARCH: "is what was searched for"}
BY_THE_ITEM = "is like the item that it is shown beside"
LEAST_SHARE = 0.1
"""Least share of the score that is named."""
MAX_PARTS = 2
MAX_SHARED = 3
MAX_TITLE = 120


@dataclass(frozen=True, kw_only=True)
class SlotFacts:
    """Facts that a sentence about one item of a list is built from."""

    contributions: Mapping[str, float]
    """Share of the score by source."""
    influence: Influence | None
    named: Sequence[int] | None
    """Items of the history that mattered and may be named; None where all may."""
    rules: Sequence[str] = ()
    of_an_item: bool = False
    """True if the list is of one item, not of a history."""
    ranked: bool = False
    """True if a ranker ordered what the sources found."""
    num_left_out: int = 0


def write_sentence(item_row: int, facts: SlotFacts, bundle: Bundle) -> str:
    """Explain why an item is in its list."""
    if facts.rules:
        return f"It is put here by rule {', '.join(facts.rules)}."
    said = [_of_parts(facts, bundle)]
    influence = facts.influence
    if influence is not None and influence.because:
        rows = [one.item_row for one in influence.because]
        may = rows if facts.named is None else [row for row in rows if row in facts.named]
        said.append(_of_history(influence, may, len(rows) - len(may), bundle))
        said += _of_shared(item_row, may, bundle)
    elif influence is not None and facts.num_left_out:
        said.append(
            f"None of the {facts.num_left_out} items of the history that were left out, one at "
            "a time, moves it down."
        )
    return " ".join(said)


def why_not_sentence(code: WhyNotCode, title: str, detail: str) -> str:
    """Explain why an item is not in a list, or that it is."""
    if code == "shown":
        return f"{title}: {detail}."
    if code in ("outranked", "rearranged"):
        return f"{title} was considered, but other items come before it: {detail}."
    return f"{title} is not in the list because {detail}."


def _of_parts(facts: SlotFacts, bundle: Bundle) -> str:
    parts = sorted(facts.contributions.items(), key=lambda part: -part[1])
    parts = [part for part in parts if part[1] >= LEAST_SHARE][:MAX_PARTS]
    if not parts:
        return "It is in the list as a fallback."
    what = [
        f"{_phrase(source, facts.of_an_item, bundle)} ({source}, {share:.0%}{of})"
        for (source, share), of in zip(parts, (" of the score", ""), strict=False)
    ]
    ordered = " A ranker then ordered the list." if facts.ranked else ""
    return f"It {' and '.join(what)}.{ordered}"


def _phrase(source: str, of_an_item: bool, bundle: Bundle) -> str:
    if of_an_item and source not in (POPULARITY.name, SEARCH, CONTENT.name):
        return BY_THE_ITEM
    if of_an_item and source == CONTENT.name:
        return "is about the same as the item that it is shown beside"
    outside = bundle.outside.get(source)
    return outside.names.explanation if outside else BY_SOURCE[source]


def _of_history(influence: Influence, rows: Sequence[int], num_hidden: int, bundle: Bundle) -> str:
    names = [_title(row, bundle) for row in rows]
    if num_hidden:
        more = " more" if names else ""
        names.append(f"{num_hidden}{more} item{'s' if num_hidden > 1 else ''} of the history")
    after = influence.place_without
    where = f"behind place {DEPTH}" if after == LOST else f"in place {after}"
    return f"Without {_listed(names)} it would be {where} instead of {influence.place}."


def list_shared(item_row: int, other_row: int, bundle: Bundle) -> list[str]:
    """List what two items share: categories, then texts of their properties."""
    catalogue = bundle.catalogue
    others = set(catalogue.categories_of(other_row))
    found = [name for name in catalogue.categories_of(item_row) if name in others]
    mine, theirs = bundle.properties.of(item_row), bundle.properties.of(other_row)
    for name, value in mine.items():
        if isinstance(value, str) and theirs.get(name) == value:
            found.append(f"{name} {value[:MAX_TITLE]}")
    return found


def _of_shared(item_row: int, rows: Sequence[int], bundle: Bundle) -> list[str]:
    """Describe what an item shares with the first that mattered, if anything."""
    for row in rows:
        if row != item_row and (found := list_shared(item_row, row, bundle)):
            return [f"It shares with {_title(row, bundle)}: {', '.join(found[:MAX_SHARED])}."]
    return []


def _title(row: int, bundle: Bundle) -> str:
    return " ".join(bundle.catalogue.title_of(row).split())[:MAX_TITLE]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
