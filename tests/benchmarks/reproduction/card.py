"""A card: which table is run again, on what, and what has to come out of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines.config.run import RunConfig
from pipelines.config.toml import merge, read_toml, validate
from pipelines.engine.artifacts import plain
from pipelines.presets import PRESETS
from recsys.models.names import BY_NAME
from tests.benchmarks.recipes.recipe import ROWS

FOLDER = Path(__file__).parent / "cards"
PUBLISHED = Path(__file__).parent / "published.toml"


@dataclass(frozen=True, kw_only=True)
class Band:
    """Where a number of test has to lie, as a mean over the card's seeds."""

    order: str = "given"
    """Of events at one time."""
    row: str
    metric: str
    mean: float
    tolerance: float

    def holds(self, value: float) -> bool:
        """Whether a value lies inside."""
        return abs(value - self.mean) <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Minutes:
    """How long a card takes, arrays prepared beforehand."""

    gpu: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a table is run from, and what it is expected to show."""

    title: str
    preset: str
    data_digest: str
    """Of the raw events; other data are refused."""
    protocol: Literal["ranking", "time_to_split"] = "ranking"
    """``time_to_split`` asks users' last events after a moment."""
    orders: tuple[str, ...] = ("given",)
    """Of events at one time."""
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: tuple[str, ...] = ROWS
    """What is shown; blends merge the models among them."""
    device: str = "one NVIDIA H200"
    """What the expected numbers were made on."""
    minutes: Minutes
    published: str | None = None
    """Column of the published numbers to compare with."""
    dates: bool = True
    """Whether its events have times, which models then may read."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the preset, as in a run's TOML file."""
    expected: tuple[Band, ...] = ()
    """None where nothing was measured yet."""
    goals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By row and metric: what the project set out to reach, met or not."""

    def config(self, workspace: Path) -> RunConfig:
        """Build the whole configuration of the card's runs."""
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}; presets: {', '.join(PRESETS)}")
        table = merge(plain(PRESETS[self.preset]()), self.overrides)
        table["workspace"] = str(workspace)
        return validate(RunConfig, table, f"card {self.title!r}")

    def sources(self) -> tuple[str, ...]:
        """Name the models that blends merge."""
        return tuple(row for row in self.rows if row in BY_NAME)

    def data_set(self) -> str:
        """Name the data set."""
        return self.config(Path()).data.dataset or self.preset


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """Another's model: recall@10 and, where it is reported, ndcg@10 by column."""

    model: str
    source: str
    numbers: Mapping[str, tuple[float, ...]]
    reads: str = ""
    """Of users and items, in a few words; empty where it is not known."""
    fitted_on: str = ""
    """Of the events, for another library run on our own queries; empty in the literature."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What others report, each with its source."""

    rows: tuple[PublishedRow, ...]


def card_names() -> list[str]:
    """List the cards of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_card(name: str) -> Card:
    """Read a card by its name, or one of one's own by its path.

    Raises:
        ValueError: There is none; offers the nearest.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        near = difflib.get_close_matches(name, card_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no card {name!r}; {hint}Cards: {', '.join(card_names())}")
    return validate(Card, read_toml(path), str(path))


def read_published() -> tuple[PublishedRow, ...]:
    """Read the numbers of the literature."""
    return validate(Published, read_toml(PUBLISHED), str(PUBLISHED)).rows
