"""Experiments: arms that change a surface for a share of its users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from serving.configuration.periods import Period
from serving.surfaces import (
    STRICT,
    Calibration,
    Count,
    Diversity,
    Exploration,
    Surface,
    Text,
    Weights,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Overrides:
    """Settings of a surface that an arm changes; the others stay."""

    weights: Annotated[Weights | None, Field(alias="sources")] = None
    diversity: Diversity | None = None
    calibration: Calibration | None = None
    caps: Mapping[Text, Count] | None = None
    exploration: Exploration | None = None

    def of(self, surface: Surface) -> Surface:
        """Change a surface.

        Raises:
            ValueError: The surface cannot be so.
        """
        given: dict[str, Any] = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        if "weights" in given:
            # A learned blend has weights of its own.
            given["learned"] = False
        return replace(surface, **given)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Arm:
    """One of the alternatives."""

    name: Text
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Share of the users, divided by the sum of all arms' weights."""
    overrides: Overrides = Overrides()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Experiment(Period):
    """Arms on some surfaces. A user stays in one arm; requests without a user id are in none."""

    arms: Annotated[tuple[Arm, ...], Field(min_length=2, max_length=20)]
    salt: Text | None = None
    """Another salt shuffles the users again; by default the name."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise ValueError(f"two arms are called {twice[0]!r}; give each a name of its own")
        super().__post_init__()
