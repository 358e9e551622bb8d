"""The document analysis.json of stage evaluate: the report and ``recsys compare`` read it.

Means with their intervals, slices, measures beyond accuracy and paired tests,
split and model. A key is absent where a value is not defined: NaN is no JSON. Next to it are tables
by user: each model's rank of each held-out item, and its lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import TypeAdapter

from pipelines.engine.artifacts import read_json, to_json
from recsys.evaluation.intervals import Interval
from recsys.evaluation.paired import MetricComparison
from recsys.evaluation.ranking import RankingResult
from recsys.evaluation.slices import SliceMetrics

ANALYSIS = "analysis.json"
SERVED = ("ranked", "blend_fast", "blend")
"""Models that may be served by default, in order of preference."""


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """One model on one split."""

    intervals: Mapping[str, Interval]
    """By metric, such as ndcg@10."""
    beyond_accuracy: Mapping[str, float]
    """By measure, such as coverage@10."""
    slices: tuple[SliceMetrics, ...]


@dataclass(frozen=True, kw_only=True)
class SplitAnalysis:
    """All models on one split."""

    num_users: int
    num_targets: int
    models: Mapping[str, ModelAnalysis]
    comparisons: tuple[MetricComparison, ...]
    """The model that was best on validation against each other one, corrected together."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The whole of analysis.json."""

    orders: Mapping[str, Mapping[str, SplitAnalysis]]
    """By order of tied times, which is `GIVEN`, and split."""
    data_digest: str
    """Digest of the features artefact."""
    protocol: str
    """Held-out events, and items that lists leave out."""
    primary_metric: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Analysis:
        """Read what ``as_json`` wrote."""
        return TypeAdapter(cls).validate_python(document)

    def save(self, artefact: Path) -> None:
        """Write analysis.json into an artefact of evaluate."""
        (artefact / ANALYSIS).write_text(to_json(self.as_json()), encoding="utf-8")

    @classmethod
    def load(cls, artefact: Path) -> Analysis:
        """Read analysis.json of an artefact of evaluate."""
        path = artefact / ANALYSIS
        if not path.exists():
            raise ValueError(
                f"{path} is missing: no user has a held-out event, or an older version made this "
                "artefact. Make it again with recsys run --force evaluate"
            )
        return cls.from_json(read_json(path))


def _plain(value: Any) -> Any:
    """Write dataclasses and named tuples as objects."""
    if is_dataclass(value):
        return _plain(vars(value))
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


RANK = "rank_"


def models_in(columns: Sequence[str]) -> tuple[str, ...]:
    """List the models of a per-user table by its columns."""
    return tuple(name.removeprefix(RANK) for name in columns if name.startswith(RANK))


def per_user_table(results: Mapping[str, RankingResult], listed: int, run: str) -> pl.DataFrame:
    """Build a table with one row for each user and held-out item."""
    first = next(iter(results.values()))
    queries = first.targets.segments().numpy()
    columns: dict[str, pl.Series] = {
        "user_row": pl.Series(first.user_rows.numpy()[queries]),
        "item_row": pl.Series(first.targets.values.numpy()),
    }
    for name, result in results.items():
        ranks = result.ranks.values.numpy()
        columns[f"rank_{name}"] = pl.Series(ranks).replace(0, None)
    for name, result in results.items():
        lists = result.top_k.item_rows[:, :listed].numpy()[queries]  # [M, K], -1 where short
        columns[f"top_k_{name}"] = (
            pl.Series(lists, dtype=pl.Array(pl.Int64, lists.shape[1]))
            .arr.to_list()
            .list.eval(pl.element().filter(pl.element() >= 0))
        )
    table = pl.DataFrame(columns).with_columns(pl.lit(run).alias("run"))
    return table.sort("user_row", "item_row")
