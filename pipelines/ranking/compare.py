"""Compare the ranker with other trunks of equal compute.

Axes: U validation users.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from pipelines.config.run import RunConfig
from recsys.fitting.blend import standard_error
from recsys.models.ranker.config import Trunk, at_equal_compute, flops_of
from recsys.models.ranker.model import Ranker


def with_trunk(config: RunConfig, ranker: Ranker, trunk: Trunk) -> RunConfig:
    """Configure a ranker with another trunk, at the same cost of a candidate."""
    other = at_equal_compute(ranker.config, ranker.inputs, trunk)
    return replace(config, ranker=replace(other, task_values=config.ranker.task_values))


def trunk_summary(
    ranker: Ranker, values: Tensor, baseline: Tensor, measures: dict[str, Any]
) -> dict[str, Any]:
    """Summarise a trained trunk on validation.

    Args:
        values: Metric of its order, [U].
        baseline: Metric of the order of the trunk that may be served, [U].
    """
    differences = values - baseline
    differences = differences[~differences.isnan()]
    examination = ranker.examination
    return {
        "trunk": ranker.config.trunk,
        "flops": flops_of(ranker.config, ranker.inputs)["total"],
        "parameters": sum(one.numel() for one in ranker.parameters()),
        "validation": float(values.nanmean()),
        "ahead": float(differences.mean()),
        "standard_error": standard_error(differences),
        "examined": [] if examination is None else examination.curve().tolist(),
        **measures,
    }
