"""The blends in a report: what serves each profile and why, its weights and its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import read_json
from pipelines.pages.charts.style import color_of
from pipelines.pages.document import Chart
from pipelines.pages.figure import share_figure
from pipelines.pages.wording import model_label
from recsys.models.names import MODELS

FILE = "blends.json"
MODEL_OF_SOURCE = {one.source: one.name for one in MODELS}
METHODS = {"learned": "learned weights", "reciprocal_rank_fusion": "reciprocal rank fusion"}


@dataclass(frozen=True, kw_only=True)
class BlendReport:
    """The blend of one profile, of the released tie order."""

    profile: str
    served: str
    reason: str
    metric: str
    num_queries: int
    num_found: int
    """Validation users with their held-out item in any list; only these train the blend."""
    validation: Mapping[str, float]
    """Metric on validation by method of merging, cross-fitted where weights are learned."""
    shares: Mapping[str, float]
    """Share of each source in the scores of the first ten, summing to 1."""
    weights: Mapping[str, Mapping[str, float]]
    """By source and feature, for average users and items."""

    @property
    def methods(self) -> list[tuple[str, float]]:
        """Methods of merging and their metric, best first."""
        return sorted(self.validation.items(), key=lambda pair: -pair[1])

    @property
    def features(self) -> list[str]:
        """Features that have a weight."""
        return list(next(iter(self.weights.values()), {}))


def method_label(method: str) -> str:
    """Name a method of merging, or the one source that is served in its place."""
    return METHODS.get(method) or f"{source_label(method)} alone"


def source_label(source: str) -> str:
    """Name a source as its model."""
    return model_label(MODEL_OF_SOURCE.get(source, source))


def read_blends(artefact: Path, tie_order: str) -> list[BlendReport]:
    """Read the blend of each profile from fit_blend; none where it did not run."""
    path = artefact / tie_order / FILE
    if not path.exists():
        return []
    profiles: dict[str, dict[str, Any]] = read_json(path)["profiles"]
    wanted = [name for name in BlendReport.__dataclass_fields__ if name != "profile"]
    return [
        BlendReport(profile=profile, **{name: read[name] for name in wanted})
        for profile, read in sorted(profiles.items())
    ]


def blend_figures(blends: Sequence[BlendReport], models: Sequence[str]) -> list[Chart]:
    """Draw the share of each source in the first ten of each profile's lists."""
    if not any(share for blend in blends for share in blend.shares.values()):
        return []
    sources = list(dict.fromkeys(source for blend in blends for source in blend.shares))
    colors = {}
    for place, source in enumerate(sources):
        model = MODEL_OF_SOURCE.get(source, source)
        colors[source_label(source)] = color_of(models.index(model) if model in models else place)
    return [
        share_figure(
            "blend-shares",
            (
                "Contribution of each model",
                "Share of the blended scores of the first ten, over the validation users.",
                "Share of each model in the blended scores of the first ten.",
            ),
            {
                blend.profile: {source_label(name): share for name, share in blend.shares.items()}
                for blend in blends
            },
            colors,
            x_title="share of the score",
            columns=("profile", "model", "share"),
        )
    ]
