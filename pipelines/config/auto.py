"""The section ``[auto]``: whether a run chooses its models itself, and how long it may take."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_BUDGET = "15m"
SECONDS = (3600.0, 60.0, 1.0)
"""Seconds of an hour, a minute and a second."""
BUDGET_PATTERN = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def budget_seconds(text: str) -> float:
    """Read a duration: ``10m``, ``90s``, ``1h30m`` or a plain number of seconds."""
    found = BUDGET_PATTERN.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise ValueError(
            f"budget = {text!r} is no duration; write it like 10m, 90s, 1h30m or 600 (seconds)"
        )
    parts = zip(found.groups(), SECONDS, strict=True)
    return sum(float(part) * size for part, size in parts if part is not None)


@dataclass(frozen=True, kw_only=True)
class AutoConfig:
    """Planning by the data, the machine and a budget (preset ``auto``)."""

    enabled: bool = False
    """True if ``recsys run`` plans; keys that the configuration sets are kept."""
    budget: str = DEFAULT_BUDGET
    """Time from the start of the command to the last bundle, such as 90s, 10m, 1h30m."""

    def __post_init__(self) -> None:
        if budget_seconds(self.budget) <= 0:
            raise ValueError(
                f"budget must be > 0, got {self.budget!r}; 10s serves what is popular, 10m trains "
                "what pays for its time"
            )
