"""The checks that a bundle must pass before it is published, one verdict each."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipelines.candidates.blends import BLEND, BLEND_FAST
from pipelines.config.release import ReleaseConfig
from pipelines.publishing.comparison import Compared, comparison_verdicts
from pipelines.publishing.gate.subject import at_least
from pipelines.ranking.artefact import RANKED
from recsys.models.names import POPULARITY
from serving.bundle.manifest import Verdict

Metrics = Mapping[str, Mapping[str, float]]
CHANCE = 2.6
"""Standard errors of a difference that one pair of equals in a hundred exceeds."""


def value_of(metrics: Metrics, model: str, metric: str) -> float:
    """Look up a model's metric.

    Raises:
        ValueError: If that metric was not measured; lists those that were.
    """
    values = metrics[model]
    if metric not in values:
        raise ValueError(
            f"release.metric = {metric!r} was not measured; it must be one of "
            f"{', '.join(sorted(values))} (see evaluation.ks)"
        )
    return values[metric]


def served_row(metrics: Metrics) -> str:
    """Name the model that is served by default: the ranker, else the ``fast`` blend, if any."""
    return next(name for name in (RANKED, BLEND_FAST, BLEND) if name in metrics or name == BLEND)


def unmeasured(champion: Metrics | None) -> Verdict:
    """Let pass what no held-out event could judge, unless it would replace what was measured."""
    why = "no user has a held-out event, so nothing was measured"
    replaces = f"{why}; the published bundle was measured, and goes on serving"
    return at_least("held-out events", 0, 1 if champion else 0, replaces if champion else why)


def found_by_index(recall: float, config: ReleaseConfig) -> Verdict:
    """Check the share of the exact nearest items that the index finds."""
    return at_least(
        "index recall",
        recall,
        config.min_index_recall,
        "share of the exact nearest items that the index finds",
    )


def release_verdicts(
    metrics: Metrics,
    index_recall: float | None,
    champion: Metrics | None,
    config: ReleaseConfig,
    compared: Compared | None = None,
    error: float = 0.0,
) -> list[Verdict]:
    """Check the challenger.

    Args:
        metrics: Test metrics by model, of a ranker where it is served; none where no user has a
            held-out event.
        index_recall: Share of the exact top list that the index finds; None without an index.
        champion: Test metrics of the published bundle, None where there is none.
        config: The bounds.
        compared: Both on the same queries; None where there is no champion to query.
        error: Standard error of the compared metric over the challenger's users.
    """
    index = [] if index_recall is None else [found_by_index(index_recall, config)]
    if not metrics:
        return [unmeasured(champion), *index]
    served = served_row(metrics)
    blend = value_of(metrics, served, config.metric)
    popularity = value_of(metrics, POPULARITY.name, config.metric)
    verdicts = [
        at_least(
            f"{config.metric} above popularity",
            blend,
            popularity * (1 + config.min_gain_over_popularity),
            f"the served list against popularity's {popularity:.4f}",
        ),
        *index,
    ]
    if compared is not None:
        verdicts += comparison_verdicts(compared, config)
    if champion is not None and (compared is None or not compared.shows_losses):
        verdicts += far_below(blend, champion, config, error)
    return verdicts


def far_below(
    value: float, champion: Metrics, config: ReleaseConfig, error: float
) -> list[Verdict]:
    """Check against what the champion had on its own data, where nothing better is to be had.

    Both are means over some users; a drop within what their numbers leave to chance is none.
    """
    chance = CHANCE * math.sqrt(2) * error
    row = served_row(champion)
    if config.metric not in champion.get(row, {}):
        return []
    before = champion[row][config.metric]
    return [
        at_least(
            f"{config.metric} against the champion's on its own data",
            value,
            before * (1 - config.max_drop_from_champion) - chance,
            f"the published bundle had {before:.4f} on other queries, so only a large drop counts; "
            f"chance alone makes {chance:.4f}",
        )
    ]
