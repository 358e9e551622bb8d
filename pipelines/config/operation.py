"""Sections on how runs operate: automatic plan, engine, tracking, daily work."""

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

    Passes, rate and replayed share of an increment are set in ``[backtest]`` (new_passes, new_rate,
    replay_share), so that the measured update is the one that runs.
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
