"""Measure the steps of a backtest that is not finished: what its lists say so far.

Its document is written at the end; until then lists lie by step. Slices and intervals need the
whole, so they are left out, and the served lists of later steps are blended last.

Axes: Q queries of a step, M targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from pipelines.dashboard.context import Context
from recsys.data.batch import Jagged
from recsys.replay.folder import PEER, SERVED, ReplayFolder
from recsys.replay.measures import METRICS, ListMeasures, measured_lists, moment_text, row_of
from recsys.replay.run import answered_by
from recsys.replay.steps import POLICIES, SECONDS_PER_DAY

Row = dict[str, Any]


def measured_so_far(
    context: Context, path: Path, description: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Write a document as a finished backtest has, of the steps whose lists are there.

    Raises:
        ValueError: The description is of another form.
    """
    folder = ReplayFolder(path)
    judged = {int(one["number"]): one for one in description["steps"] if one["number"] > 0}
    policies = tuple(description["config"]["policies"])
    steps: list[Row] = []
    rows: list[Row] = []
    first = judged[1]["begin"] if 1 in judged else 0
    for number, step in judged.items():
        files = sorted(folder.step(number).glob("lists/*.npz"))
        found = context.cache.get(
            ("lists of a step", str(path), number),
            [folder.queries(number), *files],
            partial(_answers, folder, number, files),
        )
        if not found:
            continue
        num_queries = len(next(iter(found.values())).values[METRICS[0]])
        age = (step["begin"] - first) / SECONDS_PER_DAY
        rows += _rows(found, number, policies, age)
        steps.append(
            {
                "number": number,
                "begin": moment_text(step["begin"]),
                "end": moment_text(step["end"]),
                "num_queries": num_queries,
            }
        )
    return {
        "data_set": description["data_set"],
        "data_digest": description["data_digest"],
        "config_digest": description["digest"],
        "seed": description["seed"],
        "metric": METRICS[0],
        "steps": steps,
        "num_planned": len(judged),
        "policies": {name: POLICIES[name] for name in policies},
        "rows": rows,
        "slices": [],
        "summary": [],
        "leads": [],
    }


def _answers(
    folder: ReplayFolder, number: int, files: Sequence[Path]
) -> dict[tuple[str, str], ListMeasures]:
    """Measure all lists of a step, by policy and row; what is half written is passed over."""
    try:
        with np.load(folder.queries(number), allow_pickle=False) as file:
            targets = Jagged(
                torch.from_numpy(file["targets_values"].astype(np.int64)),
                torch.from_numpy(file["targets_offsets"].astype(np.int64)),
            )
    except (OSError, EOFError, KeyError, ValueError, BadZipFile):
        return {}
    found = {}
    for path in files:
        policy, _, row = path.stem.partition(".")
        if path.name.endswith(".part.npz"):
            continue
        try:
            found[policy, row] = measured_lists(path, targets)
        except (ValueError, IndexError):
            continue
    return found


def _rows(
    found: Mapping[tuple[str, str], ListMeasures], number: int, policies: Sequence[str], age: float
) -> Iterator[Row]:
    """Write the lines of a step for every policy; all policies share the first step's models."""
    for policy in (*policies, PEER):
        made_by = policy if policy == PEER else answered_by(policy, number)
        for (one, row), measured in found.items():
            if one != (policy if row == SERVED else made_by):
                continue
            yield row_of(policy, row, number, age, measured)
