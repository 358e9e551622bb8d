"""The data of a report, read from the artefacts of a workspace.

Nothing is about single users, so the size does not depend on their number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from features.schema import GIVEN
from pipelines.engine.artifacts import read_json
from pipelines.evaluation.analysis import Analysis, SplitAnalysis
from pipelines.pages.wording import in_order
from recsys.evaluation.intervals import Interval
from recsys.models.names import MODELS

SPLITS: tuple[Literal["test", "validation"], ...] = ("test", "validation")
TRAININGS = {
    **{one.stage: one.name for one in MODELS if one.training and not one.variant_of},
    "train_ranker": "ranked",
}
"""Model of each stage that has training curves, if it ran."""
RANKER = "ranker.json"
Numbers = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
"""Value by tie order, split, model and metric."""
Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The training of one model."""

    model: str
    num_steps: int
    best_step: int | None
    """None if no validation chose a step."""
    stopped_early: bool
    stopped_by_time: bool
    validation: list[tuple[int, float]]
    """Step and ``metric`` on the validation split."""
    metric: str


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Inputs, versions and settings of the report."""

    data_digest: str = ""
    evaluation_digest: str = ""
    raw_files: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each raw file by its role."""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    """The run's configuration as TOML, without paths."""
    dataset: str | None = None
    """A data set known by name, or None for files of one's own."""
    num_test_looks: int = 0
    """Evaluations in this workspace so far that read the test split."""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """One report."""

    title: str
    primary: str
    """The metric that models are chosen by."""
    models: tuple[str, ...]
    analysis: Analysis
    metrics: Numbers
    """metrics.json of evaluate."""
    curves: list[Curve]
    blends: Mapping[str, Document]
    """blends.json of fit_blend by profile."""
    ranker: Document | None
    """ranker.json of train_ranker, and its measurements; None without a ranker."""
    num_items: int = 0
    split_kind: str = ""
    excludes_history: bool = True
    features: Document = field(default_factory=dict)
    """report.json of build_features."""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def splits(self) -> list[str]:
        """Splits that were measured, test first."""
        return [split for split in SPLITS if split in self.analysis.orders[GIVEN]]

    @property
    def chosen_on(self) -> str:
        """Split that models are chosen by: test only if validation was not measured."""
        return self.splits[-1]

    @property
    def ranked_models(self) -> list[str]:
        """Models by the primary metric on the split that they are chosen by, best first."""
        return sorted(self.models, key=lambda model: -self.interval(model, self.chosen_on).mean)

    def measured(self, split: str) -> SplitAnalysis:
        """Return the analysis of one split."""
        return self.analysis.orders[GIVEN][split]

    def interval(self, model: str, split: str) -> Interval:
        """Return a model's primary metric with its interval."""
        return self.measured(split).models[model].intervals[self.primary]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**asdict(self), "analysis": self.analysis.as_json()}


def read_curve(training: Path, model: str, metric: str) -> Curve | None:
    """Read the curve of a training; None if the model was not trained by steps.

    Args:
        training: Folder of a model's sequences in the artefact of a training stage.
        metric: Which validation metric to show; if it was not measured, the first that was.
    """
    path = training / "curve.jsonl"
    if not path.exists():
        return None
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    ending = read_json(training / "training.json")
    measured = sorted({name for row in rows for name in row if "@" in name})
    shown = metric if metric in measured or not measured else measured[0]

    def points(name: str) -> list[tuple[int, float]]:
        known = [row for row in rows if row.get(name) is not None and isfinite(row[name])]
        return [(int(row["step"]), float(row[name])) for row in known]

    return Curve(
        model=model,
        num_steps=int(ending["num_steps"]),
        best_step=ending.get("best_step"),
        stopped_early=bool(ending.get("stopped_early", False)),
        stopped_by_time=bool(ending.get("stopped_by_time", False)),
        validation=points(shown),
        metric=shown,
    )


def read_blends(artefact: Path) -> dict[str, Document]:
    """Read the blend of each profile from fit_blend; none if it did not run."""
    path = artefact / GIVEN / "blends.json"
    return dict(sorted(read_json(path)["profiles"].items())) if path.exists() else {}


def read_ranker(artefact: Path) -> Document | None:
    """Read the artefact of train_ranker; None if it is off."""
    folder = artefact / GIVEN
    if not (folder / RANKER).exists():
        return None
    made = {"metric": "", "tasks": [], "tasks_reason": "", **read_json(folder / RANKER)}
    measured = folder / "ranker" / "calibration.json"
    return {**made, "measured": read_json(measured) if measured.exists() else None}


def read_measured(artefacts: Mapping[str, Path], title: str) -> ReportData:
    """Read the measurements of models.

    Args:
        artefacts: Directory of each stage that a report reads, by the stage's name.
    """
    analysis = Analysis.load(artefacts["evaluate"])
    primary = analysis.primary_metric
    curves = [
        read_curve(artefacts[stage] / GIVEN, model, primary) for stage, model in TRAININGS.items()
    ]
    return ReportData(
        title=title,
        primary=primary,
        models=in_order(analysis.orders[GIVEN]["test"].models),
        analysis=analysis,
        metrics=read_json(artefacts["evaluate"] / "metrics.json"),
        curves=[one for one in curves if one is not None],
        blends=read_blends(artefacts["fit_blend"]),
        ranker=read_ranker(artefacts["train_ranker"]),
    )


def read_report_data(
    artefacts: Mapping[str, Path],
    *,
    title: str,
    split_kind: str,
    excludes_history: bool,
    provenance: Provenance,
) -> ReportData:
    """Read the report of one evaluation.

    Args:
        artefacts: Directory of each stage that a report reads, by the stage's name.
    """
    features = artefacts["build_features"]
    return replace(
        read_measured(artefacts, title),
        num_items=read_json(features / "features.json")["num_item_rows"] - 1,
        split_kind=split_kind,
        excludes_history=excludes_history,
        features=read_json(features / "report.json"),
        provenance=provenance,
    )
