"""Fit the step times of ``machines.json`` to measured steps, by relative error.

    python -m tests.benchmarks.planning.fit_steps steps.json --host-ms 9.9

Steps that the host's launches bound (below one and a half times ``--host-ms``) are left out of the
fit; they are the bound. No constant is below 0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from pipelines.planning.plan import Workload
from tests.benchmarks.harness import command_line

FITTED = (
    "fixed_ms",
    "score_ns",
    "score_dim_ns",
    "event_ns",
    "value_ns",
    "hottest_ns",
    "label_ns",
    "row_ns",
    "table_ns",
)


def workload_of(step: dict[str, Any]) -> Workload:
    """Describe a measured step as a plan's workload."""
    names = ("items", "dim", "batch", "history", "negatives", "tables")
    return Workload(
        **{name: step[name] for name in names},
        users=step.get("users", 0),
        head=step.get("head", 0.0),
    )


def quantities(step: dict[str, Any]) -> list[float]:
    """Count what each of FITTED is multiplied with to give milliseconds."""
    work = workload_of(step)
    scores = work.score_elements(1) * 1e-6
    moved = work.items * work.dim * 1e-6 if work.tables == "dense" else 0.0
    rows = work.item_rows_of_a_step(1) * work.dim * 1e-6
    events = work.values * 1e-6
    return [
        1.0,
        scores,
        scores * work.dim / 64,
        events,
        events * work.dim,
        work.hottest_events * 1e-6,
        work.batch * work.dim * 1e-6,
        rows,
        moved,
    ]


def fitted(steps: list[dict[str, Any]], host_ms: float) -> dict[str, float]:
    """Fit all constants."""
    bound = [step for step in steps if step["ms"] >= 1.5 * host_ms]
    matrix = np.array([quantities(step) for step in bound])
    times = np.array([step["ms"] for step in bound])
    found, _ = nnls(matrix / times[:, None], np.ones(len(times)))
    values = {name: float(f"{value:.4g}") for name, value in zip(FITTED, found, strict=True)}
    return {"host_ms": host_ms, **values}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("steps", type=Path, help="what benchmark_steps wrote")
    parser.add_argument("--host-ms", type=float, default=0.0, help="least time of a step")
    arguments = parser.parse_args()
    steps = json.loads(arguments.steps.read_text())["steps"]
    print(json.dumps(fitted(steps, arguments.host_ms)))


if __name__ == "__main__":
    main()
