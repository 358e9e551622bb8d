"""What both bundles answer, and what differs, in numbers and words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipelines.dashboard.ask.lists import kendall, overlap
from pipelines.dashboard.ask.loading import Loading
from pipelines.dashboard.ask.question import Question
from pipelines.dashboard.runs.run import Run
from pipelines.pages.wording import model_label
from serving.bundle.manifest import Profile
from serving.recommend import Made, Recommender
from serving.schemas import RecommendedItem

SEED = 1
"""Of what a list draws by chance: the same for both, so that chance makes no difference."""
NUM_NAMED = 3
MIN_BITS = 0.1
"""Of a difference in novelty that is named."""
DEGRADED = {
    "unknown_user": "does not know this user; the list is for somebody without a history",
    "empty_history": "there is no history to go by",
    "stale_data": "its data is older than the request",
    "short_list": "fewer items than requested",
    "unknown_item": "does not know the item",
    "unknown_category": "does not know the category",
    "nothing_eligible": "no item passes the filter",
    "seen_items_shown": "all items were seen, so seen ones are shown",
    "corrected_query": "searched for instead",
    "no_word_found": "no item has a word of it; these are spelt most like it",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A bundle's list."""

    bundle: Run
    recommender: Recommender
    made: Made | None
    refused: str = ""
    """Why there is no list, in words."""
    profile: Profile | None = None
    """Where it is what sets two lists apart."""

    @property
    def name(self) -> str:
        """Of the list, beside another."""
        return self.bundle.name if self.profile is None else f"{self.bundle.name}, {self.profile}"

    @property
    def items(self) -> Sequence[RecommendedItem]:
        """Best first."""
        return self.made.reply.items if self.made else ()

    @property
    def ids(self) -> list[str]:
        return [item.item_id for item in self.items]

    @cached_property
    def seen(self) -> set[str]:
        """Items of the history."""
        if self.made is None:
            return set()
        item_ids = self.recommender.bundle.catalogue.item_ids
        return {item_ids[row] for row in self.made.query.seen.tolist()}

    @property
    def notes(self) -> list[str]:
        """What was missing, late or left out, in words."""
        if self.made is None:
            return []
        return [
            f"{DEGRADED.get(one.code, one.code.replace('_', ' '))}"
            + (f" ({one.detail})" if one.detail else "")
            for one in self.made.reply.degraded
        ]


def answers_of(question: Question, states: Sequence[Loading]) -> list[Answer]:
    """Have each loaded bundle make its list, at the same moment and by the same draws."""
    request, now_ms = question.request(), int(1_000 * time.time())
    found = []
    for side in sides_of(question, states):
        try:
            made = side.recommender.make(request, now_ms=now_ms, seed=SEED)
            found.append(replace(side, made=made))
        except ValueError as error:
            # An item that this bundle does not know, or a filter on what it does not have.
            found.append(replace(side, refused=str(error)))
    return found


def sides_of(question: Question, states: Sequence[Loading]) -> list[Answer]:
    """Say what answers, before it has: the bundles that are loaded, or a bundle's two profiles."""
    loaded = [
        (bundle, state)
        for bundle, state in zip(question.bundles, states, strict=True)
        if not state.error
    ]
    if question.profile != "both":
        return [
            Answer(bundle=bundle, recommender=state.recommender(question.profile), made=None)
            for bundle, state in loaded
        ]
    bundle, state = next((one for one in loaded if "full" in one[1].profiles), loaded[0])
    return [
        Answer(bundle=bundle, recommender=state.recommender(name), made=None, profile=name)
        for name in state.profiles
    ]


def counts_of(recommender: Recommender, item_ids: Sequence[str]) -> list[float]:
    """Count each item's events as a bundle knows them; 0 of one that it does not know."""
    counts, row_of = recommender.bundle.item_counts, recommender.bundle.catalogue.row_of
    return [float(counts[row_of(item_id) or 0]) for item_id in item_ids]


def novelty(recommender: Recommender, item_ids: Sequence[str]) -> float | None:
    """Average the self-information of items in bits, by their share of all events."""
    counts = np.array(counts_of(recommender, item_ids))
    total = float(recommender.bundle.item_counts.sum())
    if not len(counts) or total <= 0:
        return None
    # An item without an event counts as if it had half of one.
    return float(np.mean(-np.log2(np.maximum(counts, 0.5) / total)))


def differences(first: Answer, second: Answer, k: int) -> list[str]:
    """Say what differs: items, order, sources, popularity, novelty, categories."""
    ours, theirs = first.ids, second.ids
    if not ours or not theirs:
        return []
    if ours == theirs:
        return ["Both lists are the same."]
    a, b = first.name, second.name
    share, tau = overlap(ours, theirs, k), kendall(ours, theirs)
    both = len(set(ours) & set(theirs))
    order = ""
    if tau is not None:
        order = f"; the order of those in both agrees with a Kendall's tau of {tau:.2f}"
    lines = [f"{both} items are in both lists ({share or 0:.0%}){order}."]
    sources = [Counter[str](item.source for item in one.items) for one in (first, second)]
    if sources[0] != sources[1]:
        lines.append(f"Sources: {a} {_counted(sources[0])}; {b} {_counted(sources[1])}.")
    yardstick = first.recommender
    medians = [float(np.median(counts_of(yardstick, ids))) for ids in (ours, theirs)]
    bits = [novelty(yardstick, ids) for ids in (ours, theirs)]
    if medians[0] != medians[1]:
        more = b if medians[1] > medians[0] else a
        lines.append(
            f"Popularity: the median item has {medians[0]:,.0f} events in the list of {a} and "
            f"{medians[1]:,.0f} in the one of {b}; {more} shows what is more popular."
        )
    if bits[0] is not None and bits[1] is not None and abs(bits[0] - bits[1]) >= MIN_BITS:
        lines.append(f"Novelty: {bits[0]:.1f} bits in {a}, {bits[1]:.1f} bits in {b}.")
    lines += _by_category(first, second)
    seen = [sum(item in one.seen for item in one.ids) for one in (first, second)]
    if any(seen):
        lines.append(f"Seen before: {seen[0]} items of {a}, {seen[1]} of {b}.")
    return lines


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {model_label(name)}" for name, number in counts.most_common())


def _by_category(first: Answer, second: Answer) -> list[str]:
    ours, theirs = (
        Counter(name for item in one.items for name in item.categories or ())
        for one in (first, second)
    )
    gaps = {name: theirs[name] - ours[name] for name in (*ours, *theirs)}
    ordered = sorted((name for name in gaps if gaps[name]), key=lambda name: -abs(gaps[name]))
    if not ordered:
        return []
    parts = ", ".join(f"{name} {ours[name]} and {theirs[name]}" for name in ordered[:NUM_NAMED])
    return [f"Categories that differ most, items of each list: {parts}."]
