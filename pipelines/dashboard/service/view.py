"""The lists of a range of time that a page is about, and the stretches they are counted in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache

import polars as pl

from pipelines.dashboard.query import Query
from pipelines.dashboard.service.columns import MINUTE_MS
from pipelines.dashboard.service.request_log import Logged
from pipelines.pages.charts.timelines import Mark
from pipelines.pages.document import Control, Option, Origin
from serving.metrics import STAGES

MINUTES_A_HOUR, MINUTES_A_DAY = 60, 1_440
RANGES = {
    "1h": ("last hour", MINUTES_A_HOUR),
    "6h": ("last 6 hours", 6 * MINUTES_A_HOUR),
    "24h": ("last 24 hours", MINUTES_A_DAY),
    "7d": ("last 7 days", 7 * MINUTES_A_DAY),
    "all": ("all that is kept", 0),
}
STEPS = {
    "minute": 1,
    "5 minutes": 5,
    "10 minutes": 10,
    "30 minutes": 30,
    "hour": 60,
    "6 hours": 360,
    "day": 1_440,
}
"""Length of a stretch in minutes."""
MAX_STEPS, FEW_STEPS = 400, 60
MAX_TIMED = 200_000
"""Of more lists every second, third and so on is taken for quantiles: they hardly differ."""
ALL = "all surfaces"


@dataclass(frozen=True, kw_only=True)
class View:
    """What was chosen of a log."""

    lists: pl.DataFrame
    """`LISTS`."""
    counts: pl.DataFrame
    """Lists by minute, bundle and surface, and how many had each code; with ``step_ms``, the begin
    of the stretch that a minute is in."""
    sources: pl.DataFrame
    """`SOURCES` with ``step_ms``."""
    range: str
    step: str
    stage: str
    surface: str
    surfaces: Sequence[str]
    """Of the whole log."""
    begin_ms: int
    end_ms: int
    origins: Sequence[Origin]
    notices: Sequence[str] = ()

    @cached_property
    def timed(self) -> pl.DataFrame:
        """Lists whose times were kept, at most so many, evenly over the range."""
        some = self.lists.gather_every(self.every) if self.every > 1 else self.lists
        timed = some.filter(pl.col("total_ms").is_not_null())
        return timed.with_columns(self.step_of("time_ms"))

    @cached_property
    def every(self) -> int:
        """Each so many-th list is taken for quantiles."""
        return max(1, -(-self.lists.height // MAX_TIMED))

    def share(self, name: str) -> float:
        """Give the share of lists that one of the counts is of."""
        return float(self.counts[name].sum()) / max(1, self.lists.height)

    def step_of(self, column: str) -> pl.Expr:
        """Name the stretch that a moment is in."""
        length = self.minutes * MINUTE_MS
        return (pl.col(column) // length * length).alias("step_ms")

    @cached_property
    def swaps(self) -> Sequence[Mark]:
        """When another bundle took over."""
        return swaps_of(self)

    def stretches(self, steps: Sequence[int]) -> dict[int, int]:
        """Number the stretches of time without a gap.

        Args:
            steps: Begins of steps that have lists, ascending.

        Returns:
            By begin of a step.
        """
        found, number = {}, 0
        for before, step in zip([steps[0], *steps] if steps else (), steps, strict=False):
            number += self.until(before) < step
            found[step] = number
        return found

    @property
    def minutes(self) -> int:
        """Length of a stretch."""
        return STEPS[self.step]

    def until(self, step_ms: int) -> int:
        """End of a stretch."""
        return step_ms + self.minutes * MINUTE_MS


def view_of(logged: Logged, query: Query, origins: Sequence[Origin]) -> View:
    """Choose by the parameters ``range``, ``step``, ``stage`` and ``surface``.

    Raises:
        QueryError: One of them is none that is allowed.
    """
    lists, sources = logged.columns.lists, logged.columns.sources
    surfaces = sorted(logged.counts["surface"].cast(pl.String).unique().to_list())
    surface = query.choice("surface", [ALL, *surfaces], ALL)
    chosen = query.choice("range", RANGES, "24h")
    times = lists["time_ms"]
    newest = 0 if times.is_empty() else int(times.max())  # type: ignore[arg-type]
    oldest = 0 if times.is_empty() else int(times.min())  # type: ignore[arg-type]
    minutes = RANGES[chosen][1]
    begin_ms = max(oldest, newest + 1 - minutes * MINUTE_MS) if minutes else oldest
    begin_ms = begin_ms // MINUTE_MS * MINUTE_MS
    step, notices = _step(query, newest - begin_ms)
    counts = logged.counts.filter(pl.col("minute_ms") >= begin_ms)
    sources = sources.filter(pl.col("minute_ms") >= begin_ms)
    if times.flags["SORTED_ASC"]:
        lists = lists.slice(int(times.search_sorted(begin_ms)))
    else:
        lists = lists.filter(pl.col("time_ms") >= begin_ms)
    if surface != ALL:
        here = pl.col("surface") == surface
        lists, counts, sources = (one.filter(here) for one in (lists, counts, sources))
    length = STEPS[step] * MINUTE_MS
    of_step = (pl.col("minute_ms") // length * length).alias("step_ms")
    return View(
        lists=lists,
        counts=counts.with_columns(of_step),
        sources=sources.with_columns(of_step),
        range=chosen,
        step=step,
        stage=query.choice("stage", STAGES, "total"),
        surface=surface,
        surfaces=surfaces,
        begin_ms=max(begin_ms, oldest),
        end_ms=newest,
        origins=origins,
        notices=notices,
    )


def _step(query: Query, span_ms: int) -> tuple[str, list[str]]:
    chosen = query.choice("step", ["auto", *STEPS], "auto")
    fitting = [
        name for name, minutes in STEPS.items() if span_ms <= FEW_STEPS * minutes * MINUTE_MS
    ]
    finest = fitting[0] if fitting else "day"
    if chosen == "auto":
        return finest, []
    if span_ms > MAX_STEPS * STEPS[chosen] * MINUTE_MS:
        return finest, [f"by {chosen} there would be too many points; they are shown by {finest}"]
    return chosen, []


def controls_of(view: View) -> Sequence[Control]:
    """Offer ranges, stretches, stages and surfaces."""
    return (
        select("range", "Time", view.range, {name: label for name, (label, _) in RANGES.items()}),
        select("step", "By", view.step, {"auto": "automatic", **{name: name for name in STEPS}}),
        select("stage", "Stage", view.stage, {name: name for name in STAGES}),
        select("surface", "Surface", view.surface, {one: one for one in (ALL, *view.surfaces)}),
    )


def select(name: str, label: str, value: str, options: Mapping[str, str]) -> Control:
    """Offer a few values, each with its label."""
    found = [Option(value=one, label=words) for one, words in options.items()]
    return Control(name=name, label=label, kind="select", value=value, options=found)


def swaps_of(view: View) -> list[Mark]:
    """Find when another bundle took over: when most lists of a stretch began to be its own."""
    counted = (
        view.counts.group_by("step_ms", "bundle")
        .agg(pl.col("lists").sum(), pl.col("first_ms").min())
        .with_columns(pl.col("bundle").cast(pl.String))
        .sort("step_ms", "lists", "bundle", descending=[False, True, False])
    )
    most = counted.group_by("step_ms", maintain_order=True).first()
    marks, before = [], None
    for step_ms, bundle in zip(most["step_ms"], most["bundle"], strict=True):
        if before is not None and bundle != before[1]:
            own = counted.filter(
                (pl.col("bundle") == bundle) & pl.col("step_ms").is_in([before[0], step_ms])
            )
            first = int(own["first_ms"].min())  # type: ignore[arg-type]
            words = f"{bundle} took over from {before[1]} at {clock(first)}"
            marks.append(Mark(at=iso(first), note=words, label=bundle))
        before = (step_ms, bundle)
    return marks


@lru_cache(4_096)
def iso(time_ms: int) -> str:
    """Write a moment as charts take it."""
    return f"{at(time_ms):%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"


@lru_cache(4_096)
def clock(time_ms: int) -> str:
    """Write a moment for people."""
    return f"{at(time_ms):%Y-%m-%d %H:%M:%S}"


def at(time_ms: int) -> datetime:
    """Give the time of unix milliseconds (UTC)."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
