"""Policies that answer the requests of a log: probabilities of the logged items, and own lists.

A bundle answers each request of the log as a server would have: with the history up to that moment,
its surfaces' exploration, and the requested length. Lists from a file are shown for certain.

Axes: m possible items of a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from pipelines.inputs.exported import list_parts, scan_parts
from pipelines.off_policy.served_log import EventHistories, ServedList
from recsys.evaluation.off_policy.logs import Floats
from serving.online.records import read_seed
from serving.recommend import Recommender
from serving.schemas import Request

MAX_HISTORY = 200
FIRST_PAGE = "start"


class PolicyAnswer(NamedTuple):
    """Answer of a policy to one request of the log."""

    chances: Sequence[float]
    slots: Sequence[tuple[Sequence[str], Floats]]
    """Possible items of each slot below the logged ones, and the chance of each, [m]."""
    shown: Sequence[str]


class Refused(NamedTuple):
    """A request that a policy does not answer."""

    reason: str


class EvaluatedPolicy(Protocol):
    """Answers requests of a log."""

    @property
    def name(self) -> str:
        """Label of the policy."""

    @property
    def newest_ms(self) -> int | None:
        """Time of the newest event that it was fitted on, where that is known."""

    def answer(self, served: ServedList, histories: EventHistories) -> PolicyAnswer | Refused:
        """Answer the request of a list, as of its moment."""


@dataclass(frozen=True, kw_only=True)
class BundlePolicy:
    """Lists of a server with a bundle."""

    recommender: Recommender

    @property
    def name(self) -> str:
        return f"bundle {self.recommender.bundle.version}"

    @property
    def newest_ms(self) -> int | None:
        newest = self.recommender.bundle.users.newest_time
        return None if newest is None else 1_000 * newest

    def answer(self, served: ServedList, histories: EventHistories) -> PolicyAnswer | Refused:
        recommender = self.recommender
        catalogue = recommender.bundle.catalogue
        request = _build_request(served)
        if isinstance(request, Refused):
            return request
        visitor = histories.visitor(served.user_id, served.time_ms, MAX_HISTORY)
        seed = read_seed(served.request_id) + 1
        try:
            made = recommender.make(request, now_ms=served.time_ms, visitor=visitor, seed=seed)
        except ValueError as error:
            return Refused(f"the policy refuses the request ({error})")
        rows = [catalogue.row_of(item_id) or 0 for item_id in served.item_ids]
        found = recommender.arranger.slot_chances(
            rows, made.ranked, made.resolved, made.query, made.eligible.mask
        )
        ids = catalogue.item_ids
        return PolicyAnswer(
            [one.chance for one in found],
            [([ids[row] for row in one.item_rows.tolist()], one.chances) for one in found],
            [item.item_id for item in made.reply.items][: len(served.item_ids)],
        )


def _build_request(served: ServedList) -> Request | Refused:
    """Build the request of a list."""
    if served.request is None:
        number = len(served.item_ids)
        return Request(surface=served.surface, user_id=served.user_id, k=number)
    request = Request.model_validate_json(served.request)
    if request.cursor not in (None, FIRST_PAGE):
        return Refused("the list is a later page of another")
    return request.model_copy(update={"explain": False, "cursor": None})


@dataclass(frozen=True, kw_only=True)
class ListsPolicy:
    """Lists that were made beforehand, one a user or one a request."""

    name: str
    by: str
    """``user_id`` or ``request_id``."""
    lists: Mapping[str, Sequence[str]]
    newest_ms: int | None = None

    def answer(self, served: ServedList, histories: EventHistories) -> PolicyAnswer | Refused:
        key = served.user_id if self.by == "user_id" else served.request_id
        shown = self.lists.get(key or "")
        if shown is None:
            return Refused(f"the policy has no list for its {self.by}")
        chances, slots = [], []
        left = list(shown)
        for item_id in served.item_ids:
            chances.append(float(bool(left) and left[0] == item_id))
            slots.append((left[:1], np.ones(len(left[:1]))))
            if item_id in left:
                left.remove(item_id)
        return PolicyAnswer(chances, slots, shown[: len(served.item_ids)])


def load_policy(path: Path, config: Path | None = None) -> EvaluatedPolicy:
    """Load a bundle, or lists as ``recsys score`` writes them.

    Lists are Parquet files with ``user_id`` or ``request_id``, ``item_id``, and ``rank`` (from 1)
    or ``slot`` (from 0).

    Args:
        config: The server's file of surfaces, rules and experiments; only for a bundle.
    """
    if not path.is_dir():
        raise ValueError(
            f"there is no folder {path}; name a bundle, or a folder of lists as recsys score "
            "writes them"
        )
    if (path / "manifest.json").exists() and not (path / "lists").is_dir():
        from serving.settings import ServingOptions

        return BundlePolicy(recommender=Recommender.load(path, ServingOptions(config=config)))
    if config is not None:
        raise ValueError(
            f"--config {config} is for a bundle; lists such as {path} stay as they are"
        )
    return _lists_policy(path)


def _lists_policy(path: Path) -> ListsPolicy:
    inside = path / "lists"
    parts = list_parts(inside if inside.is_dir() else path)
    if not parts:
        raise ValueError(
            f"{path} is neither a bundle nor a folder of Parquet files; name one of these"
        )
    table = scan_parts(parts)
    names = table.collect_schema().names()
    by = next((name for name in ("request_id", "user_id") if name in names), None)
    order = next((name for name in ("slot", "rank") if name in names), None)
    if by is None or order is None or "item_id" not in names:
        raise ValueError(
            f"lists in {path} need the columns user_id or request_id, item_id, and rank or slot; "
            f"they have {', '.join(names)}"
        )
    grouped = (
        table.select(by, "item_id", order)
        .collect()
        .sort(by, order)
        .group_by(by, maintain_order=True)
        .agg("item_id")
    )
    lists = {str(key): items for key, items in grouped.iter_rows() if key is not None}
    return ListsPolicy(name=f"lists {path.name}", by=by, lists=lists)
