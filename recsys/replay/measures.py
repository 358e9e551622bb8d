"""Measure a replay: metrics of all rows by step, and summaries of policies.

Axes: Q queries of a step, M targets, N item rows, S steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.evaluation.config import POLICIES
from recsys.evaluation.intervals import mean_intervals
from recsys.evaluation.ranking import distinct_targets, list_ranks, per_user_metric
from recsys.fitting.spec import device_named, device_text
from recsys.replay.fits import Replay
from recsys.replay.folder import SERVED, read_json
from recsys.replay.replay import answered_by
from recsys.replay.steps import SECONDS_PER_DAY, StepQueries

METRICS = ("ndcg@10", "recall@10")
PROTOCOL = (
    "Models of a step are trained on all events before it. A query is a user at a timestamp of the "
    "step: its history is the user's events strictly before that timestamp, its targets are the "
    "user's items at it. All items with an event before the step are ranked; a newer target counts "
    "as a miss. Hyperparameters are chosen on the warm-up step; blend weights are learned on the "
    "step before the one that they are evaluated on."
)


class ListMeasures(NamedTuple):
    """A row's lists of one step, measured."""

    values: dict[str, Tensor]
    """By metric, [Q] float64."""
    fit_seconds: float
    rank_seconds: float


def measured_lists(path: Path, targets: Jagged) -> ListMeasures:
    """Measure a file of lists against the targets of its queries."""
    try:
        with np.load(path, allow_pickle=False) as file:
            item_rows = torch.from_numpy(file["item_rows"].astype(np.int64))
            seconds = float(file["fit_seconds"]), float(file["rank_seconds"])
    except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}; make it once more") from error
    ranks = list_ranks(item_rows, distinct_targets(targets))
    return ListMeasures({name: per_user_metric(ranks, name) for name in METRICS}, *seconds)


class StepMeasures:
    """Measures lists of one step."""

    def __init__(self, replay: Replay, number: int) -> None:
        self.replay, self.step = replay, replay.steps[number]
        self.queries: StepQueries = replay.queries(self.step)

    def measured(self, policy: str, row: str) -> ListMeasures:
        """Measure the lists of a row."""
        number = self.step.number
        models = policy if row == SERVED else answered_by(policy, number)
        path = self.replay.folder.lists(number, models, row)
        return measured_lists(path, self.queries.targets)

    def about(self) -> dict[str, Any]:
        replay, queries, step = self.replay, self.queries, self.step
        timeline = replay.timeline
        inside = (timeline.times >= step.begin) & (timeline.times < step.end)
        users = np.unique(timeline.users[inside])
        starts = np.asarray(replay.inputs.sequences.offsets)[users]
        first = timeline.first_times[1:]
        return {
            "number": step.number,
            "begin": moment_text(step.begin),
            "end": moment_text(step.end),
            "num_known_events": int((timeline.times < step.begin).sum()),
            "num_events": int(inside.sum()),
            "num_queries": len(queries),
            "num_users": len(users),
            "num_new_users": int((timeline.before(step.begin)[users] == starts).sum()),
            "num_new_items": int(((first >= step.begin) & (first < step.end)).sum()),
        }


def moment_text(seconds: int) -> str:
    """Write a moment (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def rows_of(replay: Replay) -> list[tuple[str, str]]:
    """List policy and row of all measurements, ``served`` first."""
    models = read_json(replay.folder.done(1, answered_by("", 1)))["models"]
    return [(policy, row) for policy in replay.config.policies for row in (SERVED, *models)]


def measure_replay(replay: Replay) -> dict[str, Any]:
    """Measure all rows of all judged steps: the content of ``backtest.json``."""
    description = read_json(replay.folder.path / "replay.json")
    collected: dict[tuple[str, str], list[tuple[StepMeasures, ListMeasures]]] = defaultdict(list)
    rows: list[dict[str, Any]] = []
    measures = [StepMeasures(replay, step.number) for step in replay.steps[1:]]
    names = rows_of(replay)
    for one in measures:
        for policy, row in names:
            measured = one.measured(policy, row)
            collected[policy, row].append((one, measured))
            age = (one.step.begin - replay.steps[1].begin) / SECONDS_PER_DAY
            rows.append(row_of(policy, row, one.step.number, age, measured))
    return {
        "data_set": replay.prepared.name,
        "data_digest": replay.prepared.data_digest,
        "config_digest": description["digest"],
        "seed": replay.seed,
        "device": device_text(device_named(replay.device)),
        "protocol": PROTOCOL,
        "metric": METRICS[0],
        "steps": [one.about() for one in measures],
        "policies": {name: POLICIES[name] for name in replay.config.policies},
        "rows": rows,
        "summary": [summary_row(*row, collected[row]) for row in names],
    }


def standard_error(values: Tensor) -> float:
    """Return the error of the mean of values, [Q]."""
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0


def row_of(policy: str, row: str, step: int, age: float, measured: ListMeasures) -> dict[str, Any]:
    """Write a row's line of one step; the models of policy ``never`` are of an age in days."""
    return {
        "policy": policy,
        "row": row,
        "step": step,
        "metrics": means(measured.values),
        "standard_errors": {name: standard_error(of) for name, of in measured.values.items()},
        "fit_seconds": measured.fit_seconds,
        "rank_seconds": measured.rank_seconds,
        "model_age_days": age if policy == "never" else 0.0,
    }


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Average every metric."""
    return {name: float(value.mean()) for name, value in values.items()}


def summary_row(
    policy: str, row: str, collected: Iterable[tuple[StepMeasures, ListMeasures]]
) -> dict[str, Any]:
    """Average over the steps, each of the same weight, with intervals by users and by steps."""
    steps = list(collected)
    by_step = [means(measured.values) for _, measured in steps]
    users = torch.cat([torch.from_numpy(one.queries.user_rows) for one, _ in steps])
    intervals, time_intervals = {}, {}
    for name in METRICS:
        values = torch.cat([measured.values[name] for _, measured in steps])
        found = mean_intervals({name: of_users(values, users)})[name]
        centre = float(np.mean([one[name] for one in by_step]))
        # The interval of users is one of deviations around the mean of steps.
        intervals[name] = [centre + found.low - found.mean, centre + found.high - found.mean]
        per_step = np.array([one[name] for one in by_step])
        spread = mean_intervals({name: per_step})[name]
        time_intervals[name] = [spread.low, spread.high]
    return {
        "policy": policy,
        "row": row,
        "metrics": {name: float(np.mean([one[name] for one in by_step])) for name in METRICS},
        "intervals": intervals,
        "time_intervals": time_intervals,
        "fit_seconds": sum(measured.fit_seconds for _, measured in steps),
        "rank_seconds": sum(measured.rank_seconds for _, measured in steps),
    }


def of_users(values: Tensor, users: Tensor) -> Tensor:
    """Average a metric over each user's queries, [U]."""
    _, places = np.unique(users.numpy(), return_inverse=True)
    place = torch.from_numpy(places)
    number = int(place.max()) + 1
    totals = torch.zeros(number, dtype=torch.float64).index_add_(0, place, values)
    return totals / torch.bincount(place, minlength=number)
