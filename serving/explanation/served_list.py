"""Why a served list is as it is, and why an item is not in it.

A list is made again from its record: the same request, the same events, the same clock. Where the
bundle that made it is still served the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import orjson

from serving.explained import Explanation, HistoryItem, SlotExplained, WhyNot
from serving.explanation.removal import DEPTH, Influences, Mattered, influences
from serving.explanation.words import SlotFacts, why_not_sentence, write_sentence
from serving.online.store import RecentEvent, RequestRecord, Visitor
from serving.query import NOTHING, Rows
from serving.recommend import Made, Recommender
from serving.schemas import MAX_EXPLAINED, MAX_K, Request, WhyNotCode


def explain_list(
    recommender: Recommender, record: RequestRecord, item_id: str | None, *, names_history: bool
) -> Explanation:
    """Explain a served list, or why an item is not in it.

    Args:
        item_id: An item that may be missing from it; what of the history holds the list's items up
            is then not measured.
        names_history: Whether a reason may name items of the user's stored history.

    Raises:
        UnknownItemError: The item of surface ``related`` is not in the catalogue any more.
    """
    logged = orjson.loads(record.document)
    recommender = recommender.maker(logged["digest"])
    recommender.live.refresh()
    replay = _Replay(recommender, logged)
    same = logged["digest"] == recommender.bundle.digest
    same &= logged.get("configuration") == recommender.configuration.version
    places = enumerate(logged["items"], start=1)
    slots, num_left_out = [_slot(recommender, place, one) for place, one in places], None
    if same:
        words = _Words(replay, names_history)
        measured = words.influences(slots) if item_id is None else None
        num_left_out = None if measured is None else measured.num_left_out
        slots = [words.explained(slot, measured) for slot in slots]
    why_not = None if item_id is None else replay.why_not(item_id)
    return Explanation(
        request_id=record.request_id,
        unix_ms=record.time_ms,
        bundle=logged["bundle"],
        still_served=same,
        surface=logged["surface"],
        num_live_events=len(logged.get("live", ())),
        items=slots,
        degraded=logged.get("degraded", []),
        experiment=logged.get("experiment"),
        why_not=why_not,
        num_left_out=num_left_out,
    )


def _slot(recommender: Recommender, place: int, item: Mapping[str, Any]) -> SlotExplained:
    """Take what the record says of a place."""
    row = recommender.bundle.catalogue.row_of(item["item_id"])
    return SlotExplained(
        slot=place,
        item_id=item["item_id"],
        score=item["score"],
        source=item["source"],
        title=recommender.cards.of(row).title if row else None,
        propensity=item.get("propensity"),
        rules=item.get("rules"),
    )


class _Replay:
    """Makes the list of a record again."""

    def __init__(self, recommender: Recommender, logged: Mapping[str, Any]) -> None:
        self.recommender, self._logged = recommender, logged
        self._request = Request.model_validate(logged["request"])
        live = [RecentEvent(*event) for event in logged.get("live", ())]
        # As known when the list was made.
        self._visitor = Visitor(
            events=live,
            forgotten_ms=logged.get("forgotten_ms"),
            shown=logged.get("shown", ()),
            refused=[RecentEvent(*event) for event in logged.get("refused", ())],
            topics=logged.get("topics", ""),
        )

    def made(
        self,
        *,
        names_history: bool = True,
        without: Rows = NOTHING,
        depth: int = 0,
        **changes: object,
    ) -> Made:
        """Make the list, with more ranked items or without items of the history."""
        request = self._request.model_copy(update=changes)
        return self.recommender.make(
            request,
            names_history=names_history,
            now_ms=self._logged["unix_ms"],
            visitor=self._visitor,
            seed=self._logged.get("seed"),
            without=without,
            depth=depth,
        )

    def explained(self, names_history: bool) -> Made:
        """Make the list with reasons."""
        k = min(self._request.k, MAX_EXPLAINED)
        return self.made(names_history=names_history, explain=True, k=k)

    def why_not(self, item_id: str) -> WhyNot:
        """Find the first step at which an item was lost."""
        found = self._lost(item_id)
        title = " ".join((found.title or found.item_id).split())
        return replace(found, sentence=why_not_sentence(found.code, title, found.detail))

    def _lost(self, item_id: str) -> WhyNot:
        bundle = self.recommender.bundle
        row = bundle.catalogue.row_of(item_id)
        if row is None:
            detail = f"bundle {bundle.version} does not know it; append it, or train with it"
            return WhyNot(item_id, "unknown_item", detail)
        title = self.recommender.cards.of(row).title
        shown = [item["item_id"] for item in self._logged["items"]]
        if item_id in shown:
            detail = f"it was shown in slot {shown.index(item_id) + 1}"
            return WhyNot(item_id, "shown", detail, title)
        made = self.made(depth=MAX_K)
        if (excluded := made.eligible.why(row)) is not None:
            return WhyNot(item_id, excluded.code, excluded.detail, title)
        places = {
            source: int(np.flatnonzero(found.item_rows == row)[0]) + 1
            for source, found in made.listed.candidates.lists.items()
            if row in found.item_rows
        }
        code, detail = self._why_behind(made, row, places)
        return WhyNot(item_id, code, detail, title, places or None)

    def _why_behind(
        self, made: Made, row: int, places: Mapping[str, int]
    ) -> tuple[WhyNotCode, str]:
        if not places:
            length = made.query.surface.num_candidates
            return "no_source", f"no source has it among its best {length}"
        ranked = made.ranked
        found = [] if ranked is None else np.flatnonzero(ranked.item_rows == row).tolist()
        best = ", ".join(f"{source} has it in place {place}" for source, place in places.items())
        if not found or ranked is None:
            return "outranked", f"{best}; merged it comes behind place {MAX_K}"
        place, score = found[0] + 1, float(ranked.scores[found[0]])
        if place <= self._request.k:
            steps = _rearranging(made)
            return "rearranged", f"{best}; by score it has place {place}; moved by {steps}"
        shown = self._logged["items"]
        lowest = f", the last one shown {shown[-1]['score']:.4g}" if shown else ""
        return "outranked", f"{best}; merged it has place {place}, score {score:.4g}{lowest}"


class _Words:
    """Says why each place of a list is as it is."""

    def __init__(self, replay: _Replay, names_history: bool) -> None:
        self._replay, self._bundle = replay, replay.recommender.bundle
        self._made = replay.explained(names_history)
        self._items = {item.item_id: item for item in self._made.reply.items}
        self._named = None if names_history else self._made.query.sent.tolist()

    def influences(self, slots: Sequence[SlotExplained]) -> Influences:
        """Measure what of the history holds up each item."""
        row_of = self._bundle.catalogue.row_of
        rows = [row for slot in slots[:MAX_EXPLAINED] if (row := row_of(slot.item_id))]
        remade = partial(self._replay.made, depth=DEPTH, explain=False)
        return influences(lambda w: remade(without=w), rows, self._bundle.item_weights)

    def explained(self, slot: SlotExplained, measured: Influences | None) -> SlotExplained:
        """Add the reason, the parts of the score and the sentence to a place."""
        item, row = self._items.get(slot.item_id), self._bundle.catalogue.row_of(slot.item_id)
        if item is None or row is None:
            return slot
        influence = None if measured is None else measured.by_row.get(row)
        facts = SlotFacts(
            contributions=item.contributions or {},
            influence=influence,
            named=self._named,
            rules=slot.rules or (),
            of_an_item=self._made.query.item_row != 0,
            ranked=self._made.reply.served_by.ranker is not None,
            num_left_out=0 if measured is None else measured.num_left_out,
        )
        found = replace(
            slot,
            reason=item.reason,
            contributions=item.contributions,
            sentence=write_sentence(row, facts, self._bundle),
        )
        if influence is None:
            return found
        named = self._named
        may_name = [one for one in influence.because if named is None or one.item_row in named]
        because = [self._shown(one) for one in may_name]
        return replace(
            found,
            place=influence.place,
            because=because or None,
            place_without=influence.place_without,
        )

    def _shown(self, one: Mattered) -> HistoryItem:
        card = self._replay.recommender.cards.of(one.item_row)
        return HistoryItem(card.item_id, one.place, card.title)


def _rearranging(made: Made) -> str:
    """List what puts other items before better ranked ones."""
    surface, names = made.resolved.surface, [rule.name for rule in made.resolved.rules]
    steps = {
        f"rules ({', '.join(names)})": bool(names),
        "the caps of the surface": bool(surface.caps),
        "diversity": bool(made.query.request.diversity) or surface.diversity.method != "none",
        "exploration": surface.exploration is not None,
    }
    return ", ".join(step for step, there in steps.items() if there) or "what has changed since"
