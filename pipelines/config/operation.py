"""Sections on how runs operate: automatic plan, engine, tracking, daily work, release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import PlainValidator

from features.reading.databases import DatabaseTable, is_address
from recsys.data.bounds import check_bounds
from recsys.evaluation.config import PairedConfig, check_metric_name

DEFAULT_BUDGET = "15m"
SECONDS = (3600.0, 60.0, 1.0)
"""Seconds of an hour, a minute and a second."""
BUDGET_PATTERN = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
LEAST_BARE_SECONDS = 20.0
"""Number without a unit from which it is read as seconds; smaller ones are meant as minutes."""
PAST_DAYS = 120
"""Days that thresholds are learned from."""
HISTORY_DAYS = 400
"""Days before that the first call measures, at most."""
MIN_PAST = 21
"""A signal with fewer past deviations raises no alarm."""
TIMED = "time of a list"
"""A verdict whose value differs between equal runs: in the decision, not in the bundle."""


def read_place(value: object) -> Path | str:
    """Read a path, or the address of a table in a database."""
    if not isinstance(value, str):
        raise ValueError("it must be a path or an address in quotes")
    if not is_address(value):
        return Path(value)
    DatabaseTable.parse(value)
    return value


def read_places(value: object) -> Path | str | tuple[Path | str, ...]:
    """Read one place or several."""
    return tuple(map(read_place, value)) if isinstance(value, list) else read_place(value)


Place = Annotated[Path | str, PlainValidator(read_place)]
Places = Annotated[Path | str | tuple[Path | str, ...], PlainValidator(read_places)]


def budget_seconds(text: str) -> float:
    """Read a duration: ``10m``, ``90s``, ``1h30m`` or a plain number of seconds."""
    found = BUDGET_PATTERN.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise ValueError(
            f"budget = {text!r} is no duration; write it like 10m, 90s, 1h30m or 600 (seconds)"
        )
    parts = zip(found.groups(), SECONDS, strict=True)
    seconds = sum(float(part) * size for part, size in parts if part is not None)
    has_unit = text.strip()[-1].isalpha()
    if not has_unit and 0 < seconds < LEAST_BARE_SECONDS:
        raise ValueError(
            f"budget = {text!r} has no unit and is read as {seconds:g} seconds; write {text}m if "
            f"minutes are meant, else {text}s"
        )
    return seconds


@dataclass(frozen=True, kw_only=True)
class AutoConfig:
    """Planning by the data, the machine and a budget (preset ``auto``)."""

    enabled: bool = False
    """True if ``recsys run`` plans; keys that the configuration sets are kept."""
    budget: str = DEFAULT_BUDGET
    """Time from the start of the command to the last bundle, such as 90s, 10m, 1h30m."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(
                f"budget must be > 0, got {self.budget!r}; 10s serves what is popular, 10m trains "
                "what pays for its time"
            )

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        return budget_seconds(self.budget)


Engine = Literal["local", "torchrun"]


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Recording of runs in MLflow."""

    enabled: bool = True
    """Record runs."""
    uri: str | None = None
    """An MLflow server (http://host:5000) or database (sqlite:////path/mlflow.db); None is the one
    of MLFLOW_TRACKING_URI, else SQLite in the workspace. User and password come from
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: str = "recsys"
    """Experiment under which MLflow lists the runs."""
    model: str = "recsys"
    """Model under which the registry lists the bundles."""
    bundles: str | None = None
    """Folder or URL (s3://shop/bundles) that released bundles are copied to, so that other machines
    can fetch them; None points at where they were made."""
    sync_seconds: float = 60.0
    """How long a command may wait at its end for the store; the rest is sent later."""
    request_seconds: int = 5
    """How long one request to the server may take."""
    max_retries: int = 1
    """More attempts of a request that failed."""

    def __post_init__(self) -> None:
        for name, instead in (
            ("uri", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
            ("bundles", "what the driver of the store reads, such as AWS_SECRET_ACCESS_KEY"),
        ):
            if urlsplit(getattr(self, name) or "").password:
                raise ValueError(
                    f"tracking.{name} holds a password, which would be written into every run's "
                    f"configuration; take it out and set {instead}"
                )
        check_bounds(self, "tracking.", sync_seconds="> 0", request_seconds="> 0")


UpdatePolicy = Literal["incremental", "full", "never"]


@dataclass(frozen=True, kw_only=True)
class UpdatesConfig:
    """Policy of ``recsys update`` on new events; ``recsys backtest`` measures each.

    Passes and rate of an increment are set in ``[backtest]`` (new_passes, new_rate), so that the
    measured update is the one that runs.
    """

    policy: UpdatePolicy = "incremental"
    """incremental continues the served models, full runs every stage, never leaves them."""
    full_every_days: int | None = 7
    """Age of the last full run at which an update is a full one; None leaves that to recsys run."""
    counts_only: bool = False
    """Only recount and index in increments, and leave trained weights as they are."""
    held_out_share: float = 0.1
    """Share of the users with new events whose new events judge the increment; the next one
    trains on them."""
    min_held_out: int = 200
    """Users held out if that many have new events, at most half of them."""

    def __post_init__(self) -> None:
        check_bounds(self, "updates.", full_every_days=">= 1", held_out_share="(0, 1)")


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """Settings of ``recsys monitor``."""

    reference_days: int = 28
    """Days before it that a day is compared with."""
    false_alarms_a_month: float = 0.5
    """How many are tolerated, all signals together; holidays come on top."""
    min_events: int = 50
    """A day with fewer is not compared."""
    max_age_days: Mapping[str, float] = field(default_factory=dict)
    """Oldest permitted input by name (events, served, catalogue, content, bundle); without one,
    past gaps limit events and served lists, and nothing limits the others."""
    served: Path | None = None
    """Folder that recsys data export wrote; without it <workspace>/online_events, or that of
    data.online_events."""

    def __post_init__(self) -> None:
        check_bounds(self, reference_days=">= 7", min_events=">= 1")
        check_bounds(self, false_alarms_a_month="(0, 10]")


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Section ``[release.gate]``; the defaults are generous: what they refuse is broken."""

    enabled: bool = True
    """Check the written bundle; its metrics are always checked."""
    num_queries: int = 200
    """Users for whom champion and challenger make a list."""
    list_length: int = 20
    """Length of those lists."""
    min_kept_items: float = 0.9
    """Share of the champion's items that the challenger still has."""
    min_kept_users: float = 0.5
    """The same of users."""
    max_changed_texts: float = 0.5
    """Share of the kept items whose text may differ from the champion's."""
    min_coverage: float = 0.5
    """Different items in the sampled lists, as a share of the champion's."""
    min_novelty: float = 0.7
    """Mean novelty of the listed items (bits), as a share of the champion's."""
    max_latency_ms: float = 500.0
    """Median of one list in this process."""
    max_latency_ratio: float = 3.0
    """The same against the champion's, measured in turns; below 20 ms nothing is refused."""
    max_gain: float = 1.0
    """Relative gain over a champion of the same models, or of the ranker over the list it reorders,
    beyond which a person has to look; 1 is twice as good, 0 switches the check off."""
    max_duplicates: float = 0.3
    """Share of the rows read that repeat another row."""
    max_moved_times: float = 0.1
    """Share of the events that the champion knows too whose times changed."""

    def __post_init__(self) -> None:
        check_bounds(self, "gate.", num_queries=">= 1", list_length=">= 1")
        for name in vars(self):
            if name.startswith(("min_", "max_")):
                unbounded = name.endswith(("_ms", "_ratio", "_gain"))
                check_bounds(self, "gate.", **{name: ">= 0" if unbounded else "[0, 1]"})


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """Folder of the bundles, and the checks before one is published."""

    bundles: Path | None = None
    """Folder of the bundles and of the link ``current``; <workspace>/bundles by default."""
    metric: str = "ndcg@10"
    """Floor in the first places: the served list must reach popularity and the champion's own past
    on test, and a challenger that is shown to lose more than ``max_loss`` by it is refused. The
    release is decided by ``deciding_metric``."""
    min_gain_over_popularity: float = 0.0
    """Relative; 0.1 requires a tenth more than popularity has. -1 switches the check off."""
    max_drop_from_champion: float = 0.1
    """Relative to what the published bundle had on its own data, a safety net where too few queries
    are answered by both; 1 switches it off."""
    deciding_metric: str = "ndcg@50"
    """The one metric that decides a release, on the same queries; at 50 a difference shows with
    half as many users as at 10 (docs/decisions/release-gate.md)."""
    confidence: float = 0.96
    """Confidence of the intervals of that difference; if there are times, both must hold, and 2.7%
    of equal challengers are called better or worse."""
    max_loss: float = 0.02
    """Relative loss that is tolerated: a challenger that is shown to be worse is published all the
    same if more than this is excluded."""
    max_slice_loss: float = 0.1
    """Relative loss of a protected slice (activity of users, popularity of items) beyond which a
    challenger is refused, if the slice shows it."""
    min_compared: int = 200
    """Users that both must have answered; fewer are not enough evidence."""
    max_compared: int = 20_000
    """Queries that both answer at most, drawn by the seed; they find a difference of 3%."""
    max_queried: int = 10_000
    """Queries that the champion's bundle answers now, some milliseconds each; the others
    are read from its evaluation."""
    when_undecided: Literal["release", "keep"] = "release"
    """Decision on a challenger that is shown to be neither better nor worse: newer data serve,
    or the champion stays."""
    min_index_recall: float = 0.99
    """Least recall of the index against exact search."""
    promote: bool = True
    """Serve a bundle that passed at once, as champion; else it stays challenger until
    ``recsys release promote``. The first bundle is always champion."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Bounds of the checks on the written bundle."""

    def __post_init__(self) -> None:
        check_bounds(self, max_drop_from_champion="[0, 1]", max_loss="[0, 1]")
        check_bounds(self, max_slice_loss="[0, 1]", min_index_recall="[0, 1]", max_queried=">= 0")
        check_metric_name(self.deciding_metric)
        check_metric_name(self.metric)
        if not 2 <= self.min_compared <= self.max_compared:
            raise ValueError(
                "min_compared must be at least 2 and at most max_compared, got "
                f"{self.min_compared} and {self.max_compared}"
            )
        self.paired()

    @property
    def depth(self) -> int:
        """Places of a list that champion and challenger are compared by."""
        return max(int(name.partition("@")[2]) for name in (self.deciding_metric, self.metric))

    def paired(self) -> PairedConfig:
        """Return how champion and challenger are compared."""
        return PairedConfig(
            confidence=self.confidence, margin=self.max_loss, slice_margin=self.max_slice_loss
        )
