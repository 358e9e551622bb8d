"""Rubrics: criteria that people answer of the same lists, and how far they agree.

A rubric's answers are in ``<rubric>.answers.jsonl`` next to it, one line an answer. A line knows
its list by the digest of what raters saw, so it counts for no other list, and names no user.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from recsys.data.bounds import check_bounds
from recsys.data.durable import append_line, locked


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A sentence, its description, that is true of a good list; all raters read these words."""

    name: str
    description: str

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.description.strip():
            raise ValueError(
                f"a criterion needs a name and a description, got {self.name!r} and "
                f"{self.description!r}"
            )


@dataclass(frozen=True, kw_only=True)
class Rubric:
    """A file of criteria, and which lists they are answered of."""

    criteria: tuple[Criterion, ...]
    num_lists: int = 50
    """Users whose lists are rated, drawn by ``seed``."""
    k: int = 10
    """Items of a list that are rated, at most 20."""
    seed: int = 0

    def __post_init__(self) -> None:
        names = [one.name for one in self.criteria]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"criteria are {', '.join(names) or 'none'}; write at least one table "
                "[[criteria]], each of another name"
            )
        check_bounds(self, num_lists=">= 1", k="[1, 20]", seed=">= 0")


class Ratings:
    """All answers to a rubric."""

    def __init__(self, path: Path, rubric: Rubric) -> None:
        """Read the answers so far; other words of a criterion are another criterion."""
        self.path = path
        self.sentences = {one.name: one.description for one in rubric.criteria}
        self.by_rater: dict[str, dict[str, dict[str, bool]]] = {}
        """Yes and no by rater, list, and criterion."""
        lines = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in lines.splitlines():
            try:
                said = json.loads(line)
                rater, key, name, passes = (
                    said[field] for field in ("rater", "list", "criterion", "passes")
                )
                is_meant = self.sentences.get(name) == said["sentence"]
            except (ValueError, KeyError, TypeError):
                continue  # cut off by a kill
            if is_meant:
                self._add(rater, key, name, passes)

    def _add(self, rater: str, key: str, criterion: str, passes: bool) -> None:
        self.by_rater.setdefault(rater, {}).setdefault(key, {})[criterion] = passes

    def keep(self, rater: str, key: str, criterion: str, passes: bool) -> None:
        """Append an answer; it is on the disk when this returns."""
        answer = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "rater": rater,
            "list": key,
            "criterion": criterion,
            "sentence": self.sentences[criterion],
            "passes": passes,
        }
        with locked(self.path.with_suffix(".lock")):
            append_line(self.path, json.dumps(answer, ensure_ascii=False))
        self._add(rater, key, criterion, passes)

    def of(self, rater: str, key: str) -> dict[str, bool]:
        """Return a rater's answers on a list, by criterion."""
        return self.by_rater.get(rater, {}).get(key, {})

    def said(self, criterion: str) -> dict[str, list[bool]]:
        """Collect yes and no of all raters by list."""
        found: dict[str, list[bool]] = {}
        for lists in self.by_rater.values():
            for key, answers in lists.items():
                if criterion in answers:
                    found.setdefault(key, []).append(answers[criterion])
        return found

    def agreement(self, criterion: str) -> Agreement | None:
        """Compare raters with each other; None without a list that two rated."""
        rated = [answers for answers in self.said(criterion).values() if len(answers) > 1]
        if not rated:
            return None
        equal = yes = 0.0
        for answers in rated:
            count, positive = len(answers), answers.count(True)
            negative = count - positive
            pairs = count * (count - 1)
            equal += (positive * (positive - 1) + negative * (negative - 1)) / pairs / len(rated)
            yes += positive / count / len(rated)
        by_chance = yes**2 + (1 - yes) ** 2
        kappa = math.nan if by_chance == 1 else (equal - by_chance) / (1 - by_chance)
        return Agreement(len(rated), equal, kappa)


class Agreement(NamedTuple):
    """How far the answers of several raters to one criterion agree; a list counts once."""

    num_lists: int
    share: float
    """Share of pairs of answers that are equal."""
    kappa: float
    """The same beyond chance (Fleiss, 1971): 1 for all, 0 for raters who ignore the list; NaN if
    all answers are one."""
