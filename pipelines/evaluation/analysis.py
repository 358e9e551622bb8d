"""What analysis.json of the stage evaluate says, typed: the report and ``recsys compare`` read it.

Means with their intervals, slices, measures beyond accuracy and paired tests, for each tie order,
split and model. A key is absent where a value is not defined: NaN is no JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import to_json
from recsys.evaluation.bootstrap import Interval
from recsys.evaluation.significance import MetricComparison
from recsys.evaluation.slices import SliceMetrics

ANALYSIS = "analysis.json"


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """One model on one split."""

    intervals: Mapping[str, Interval]
    """By metric, such as ndcg@10."""
    beyond_accuracy: Mapping[str, float]
    """By measure, such as coverage@10."""
    slices: tuple[SliceMetrics, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "intervals": {name: value._asdict() for name, value in self.intervals.items()},
            "beyond_accuracy": dict(self.beyond_accuracy),
            "slices": [part.as_json() for part in self.slices],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ModelAnalysis:
        """Read what ``as_json`` wrote."""
        return cls(
            intervals=intervals_from_json(document["intervals"]),
            beyond_accuracy=dict(document["beyond_accuracy"]),
            slices=tuple(
                SliceMetrics(**{**part, "metrics": intervals_from_json(part["metrics"])})
                for part in document["slices"]
            ),
        )


@dataclass(frozen=True, kw_only=True)
class SplitAnalysis:
    """All models on one split."""

    num_users: int
    num_targets: int
    models: Mapping[str, ModelAnalysis]
    comparisons: tuple[MetricComparison, ...]
    """The model that was best on validation against each other one, corrected together."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "num_users": self.num_users,
            "num_targets": self.num_targets,
            "models": {name: model.as_json() for name, model in self.models.items()},
            "comparisons": [test._asdict() for test in self.comparisons],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SplitAnalysis:
        """Read what ``as_json`` wrote."""
        return cls(
            num_users=document["num_users"],
            num_targets=document["num_targets"],
            models={
                name: ModelAnalysis.from_json(model) for name, model in document["models"].items()
            },
            comparisons=tuple(MetricComparison(**test) for test in document["comparisons"]),
        )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The whole of analysis.json."""

    orders: Mapping[str, Mapping[str, SplitAnalysis]]
    """By tie order and split."""
    data_digest: str
    """Of the features artefact that was evaluated on."""
    protocol: str
    """How the held-out events were chosen and what was left out of the lists."""
    primary_metric: str

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "orders": {
                order: {split: part.as_json() for split, part in splits.items()}
                for order, splits in self.orders.items()
            },
            "data_digest": self.data_digest,
            "protocol": self.protocol,
            "primary_metric": self.primary_metric,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Analysis:
        """Read what ``as_json`` wrote."""
        return cls(
            orders={
                order: {split: SplitAnalysis.from_json(part) for split, part in splits.items()}
                for order, splits in document["orders"].items()
            },
            data_digest=document["data_digest"],
            protocol=document["protocol"],
            primary_metric=document["primary_metric"],
        )

    def save(self, artefact: Path) -> None:
        """Write analysis.json into an artefact of evaluate."""
        (artefact / ANALYSIS).write_text(to_json(self.as_json()), encoding="utf-8")

    @classmethod
    def load(cls, artefact: Path) -> Analysis:
        """Read analysis.json of an artefact of evaluate."""
        path = artefact / ANALYSIS
        if not path.exists():
            raise ValueError(
                f"{path} is missing: an older version made this artefact, or it was made with "
                "evaluation.num_resamples = 0. Make it again with recsys run --force evaluate"
            )
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))


def intervals_from_json(document: Mapping[str, Mapping[str, Any]]) -> dict[str, Interval]:
    """Read intervals by metric."""
    return {name: Interval(**value) for name, value in document.items()}
