"""Search all slices of a pair for losses and gains that are shown.

Every single attribute and the crossed pairs of `slicings.CROSSED` are searched. A loss counts if
more than a margin of the first side's value is shown to be lost, a gain if more than nothing is;
Holm's levels over all slices keep the chance of a single false loss (or gain) below
`SearchConfig.error`. Slices overlap, so one cause shows in many of them: the clearest slice is
named and its queries are set aside, and another is named only if what is left of it still shows.

Axes: C slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.dashboard.data.paired import (
    Floats,
    Moments,
    Pairs,
    Values,
    gain_p_values,
    interval,
    loss_p_values,
    moments_of,
)
from pipelines.dashboard.data.slices import Slicing, label_of
from recsys.evaluation.significance import holm

Kind = Literal["lost", "gained"]


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What counts as a loss or gain of a slice."""

    metric: str = "ndcg@50"
    """As the release gate compares by: differences show with half as many users as at 10."""
    margin: float = 0.1
    """Relative loss that is tolerated in a slice."""
    error: float = 0.01
    """Chance of naming any slice that lost no more, and of naming any that gained nothing."""
    confidence: float = 0.95
    """Of the intervals that are shown; they are not adjusted."""
    min_users: int = 100
    """Slices with fewer users are not searched."""
    min_changed: int = 20
    """Nor are those where fewer users' values differ: too few for the normal's tail."""
    most: int = 3
    """Slices that are named."""


@dataclass(frozen=True, kw_only=True)
class SliceShift:
    """A slice whose difference is shown."""

    key: str
    """``<group>/<name>``."""
    num_users: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    """Adjusted over all slices."""

    @property
    def label(self) -> str:
        return label_of(self.key)

    @property
    def relative(self) -> float:
        """Difference as a share of the first side's value; infinite where that is 0."""
        return self.difference / self.first if self.first > 0 else np.inf


@dataclass(frozen=True, kw_only=True)
class Search:
    """What came out."""

    lost: tuple[SliceShift, ...]
    """The clearest first."""
    gained: tuple[SliceShift, ...]
    explained: Mapping[str, Kind]
    """Slices that are shown to lose or gain as well, but no longer without the named ones."""
    num_searched: int
    num_too_small: int
    """Slices with too few users, or too few that differ, to show anything."""


class _Test(NamedTuple):
    slicing: Slicing
    code: int
    p_value: float
    clearness: float
    """The statistic: p-values of clear differences are all 0."""


def search(pairs: Pairs, first: int, second: int, config: SearchConfig | None = None) -> Search:
    """Search the slices of two sides.

    Args:
        pairs: Of the joined queries.
        first: Place of the side that is served, or comes first.
        second: Place of the other.
        config: Margin and error.
    """
    config = config or SearchConfig()
    tests: dict[Kind, list[_Test]] = {"lost": [], "gained": []}
    total = searched = 0
    for slicing in pairs.slicings.searched:
        values = pairs.values(first, second, slicing, config.metric)
        found = moments_of(values)
        enough = _enough(found, config)
        total += int((found.num_users > 0).sum())
        searched += int(enough.sum())
        for kind in tests:
            p_values, clearness = _tested(values, found, kind, config)
            tests[kind] += [
                _Test(slicing, code, float(p_values[code]), float(clearness[code]))
                for code in np.flatnonzero(enough).tolist()
            ]
    sides = (first, second)
    shown = {kind: _shown(tests[kind], config) for kind in tests}
    lost, gained = (tuple(_named(pairs, sides, kind, shown[kind], config)) for kind in shown)
    named = {one.key for one in (*lost, *gained)}
    explained = {
        key: kind
        for kind, of_kind in shown.items()
        for test, _ in of_kind
        if (key := test.slicing.keys[test.code]) not in named
    }
    return Search(
        lost=lost,
        gained=gained,
        explained=explained,
        num_searched=searched,
        num_too_small=total - searched,
    )


def _enough(found: Moments, config: SearchConfig) -> NDArray[np.bool_]:
    enough: NDArray[np.bool_] = (found.num_users >= config.min_users) & (
        found.num_changed >= config.min_changed
    )
    return enough


def _tested(
    values: Values, found: Moments, kind: Kind, config: SearchConfig
) -> tuple[Floats, Floats]:
    """Test each slice; returns p-values and how clear each is."""
    if kind == "lost":
        p_values, statistic = loss_p_values(values, config.margin)
        return p_values, -statistic
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.nan_to_num(found.difference / found.standard_error)
    return gain_p_values(found), statistic


def _shown(tests: list[_Test], config: SearchConfig) -> list[tuple[_Test, float]]:
    """Keep the slices that Holm's levels call different, each with its adjusted p-value."""
    if not tests:
        return []
    adjusted = holm(np.array([test.p_value for test in tests]))
    return [
        (test, float(after))
        for test, after in zip(tests, adjusted, strict=True)
        if after <= config.error
    ]


def _named(
    pairs: Pairs,
    sides: tuple[int, int],
    kind: Kind,
    shown: list[tuple[_Test, float]],
    config: SearchConfig,
) -> Iterator[SliceShift]:
    """Name the clearest slice, then what the named ones do not explain."""
    left = np.ones(len(pairs.known), np.bool_)
    for _ in range(config.most):
        if not shown:
            return
        best, after = max(shown, key=lambda one: one[0].clearness)
        yield _shift(pairs, sides, best, after, config)
        left[best.slicing.queries[best.slicing.codes == best.code]] = False
        shown = list(_unexplained(pairs, sides, kind, shown, left, config))


def _unexplained(
    pairs: Pairs,
    sides: tuple[int, int],
    kind: Kind,
    shown: list[tuple[_Test, float]],
    left: NDArray[np.bool_],
    config: SearchConfig,
) -> Iterator[tuple[_Test, float]]:
    """Test the shown slices by the queries that are left."""
    by_group = {test.slicing.group: test.slicing for test, _ in shown}
    for slicing in by_group.values():
        kept = left[slicing.queries]
        rest = slicing._replace(codes=slicing.codes[kept], queries=slicing.queries[kept])
        values = pairs.uncounted(*sides, rest, config.metric)
        found = moments_of(values)
        enough = _enough(found, config)
        p_values, clearness = _tested(values, found, kind, config)
        for test, after in shown:
            code = test.code
            if test.slicing is slicing and enough[code] and p_values[code] <= config.error:
                yield test._replace(clearness=float(clearness[code])), after


def _shift(
    pairs: Pairs, sides: tuple[int, int], one: _Test, adjusted: float, config: SearchConfig
) -> SliceShift:
    found = pairs.moments(*sides, one.slicing, config.metric)
    low, high = interval(found, config.confidence)
    return SliceShift(
        key=one.slicing.keys[one.code],
        num_users=int(found.num_users[one.code]),
        first=float(found.first[one.code]),
        second=float(found.second[one.code]),
        difference=float(found.difference[one.code]),
        low=float(low[one.code]),
        high=float(high[one.code]),
        p_value=adjusted,
    )
