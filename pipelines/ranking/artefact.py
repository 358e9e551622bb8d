"""The artefact of train_ranker.

given/ranker/        what a bundle carries (serving/bundle/ranker.py), with its measures
given/measured/      history features fitted on train, to measure validation and test with
given/ranker.json    whether the ranker is served, and why
given/values_ranker.npy  what its order reaches for each validation query
given/training.json, curve.jsonl

Where no ranker could be trained there is ranker.json alone, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recsys.models.item_tower import ItemCatalogue
from serving.bundle.ranker import LoadedRanker

RANKER, MEASURED = "ranker", "measured"
FILE = "ranker.json"
CALIBRATION = "calibration.json"
EXPERTS, IMPRESSIONS = "experts", "impressions"
"""Parts of a ranker that it is trained with and without."""


def read_decision(directory: Path) -> dict[str, Any]:
    """Read whether the ranker is served, and why."""
    decision: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    return decision


class Choice(NamedTuple):
    """Something that another training does differently, and what it came to."""

    name: str
    words: str
    kept: bool
    ahead: float
    standard_error: float


def describe_choices(decision: Mapping[str, Any]) -> dict[str, str]:
    """Describe what each part of a trained ranker brought, or why it was not measured."""
    if "choices" not in decision:
        return {}
    found = {
        EXPERTS: "not measured: ranker.trunk is set",
        IMPRESSIONS: "left out: no list names what was shown and not chosen (filters.shown_types)",
    }
    for one in (Choice(**choice) for choice in decision["choices"]):
        gain = f"{one.ahead:+.4f} +- {one.standard_error:.4f} {decision['metric']} on validation"
        found[one.name] = f"{'trained' if one.kept else 'tried'}: {gain}; {one.words}"
    return found


def measured_ranker(directory: Path, catalogue: ItemCatalogue) -> LoadedRanker | None:
    """Load the ranker with features fitted on train; None if there is none."""
    if not (directory / RANKER).exists():
        return None
    return LoadedRanker.load(directory / RANKER, catalogue, directory / MEASURED)


def served_ranker(directory: Path) -> Path | None:
    """Locate the ranker that a bundle carries; None where the blend's order is served."""
    if not (directory / FILE).exists() or not read_decision(directory)["served"]:
        return None
    return directory / RANKER
