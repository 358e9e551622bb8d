"""Compare ``recsys plan`` with measured steps: time and memory.

    python -m tests.benchmarks.planning.check_plan steps.json --machine h200

A step with ``after_start`` says its peak memory without that of building the optimizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.planning.plan import Hardware, HardwarePlan, machine_named, plan_for
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.planning.fit_steps import workload_of

MOST = 15.0
"""Percent."""


def planned(step: dict[str, Any], machine: Hardware) -> HardwarePlan:
    return plan_for(workload_of(step), machine, step["gpus"])


def name_of(step: dict[str, Any]) -> str:
    """Name a case by its sizes."""
    users = f", {step['users']:,} users" if step.get("users") else ""
    gpus = f", {step['gpus']} GPUs" if step["gpus"] > 1 else ""
    return (
        f"{step['items']:,} x {step['dim']}{users}, batch {step['batch']}, "
        f"{step['negatives']} negatives, {step['history']:.0f} events{gpus}"
    )


def rows_of(steps: list[dict[str, Any]], machine: Hardware) -> list[Row]:
    """Make the lines of every measured step."""
    rows = []
    for step in steps:
        name, plan = name_of(step), planned(step, machine)
        off = 100 * abs(plan.total_ms / step["ms"] - 1)
        rows.append(Row(name=f"{name}: measured", value=step["ms"], unit="ms"))
        rows.append(Row(name=f"{name}: planned", value=plan.total_ms, unit="ms"))
        rows.append(Row(name=f"{name}: off by", value=off, unit="%", at_most=MOST))
        if step.get("peak_gib"):
            used = plan.total_gib
            if step.get("after_start"):
                used -= plan.memory_gib["copy at the start"]
            off = 100 * abs(used / step["peak_gib"] - 1)
            rows.append(Row(name=f"{name}: peak memory", value=step["peak_gib"], unit="GiB"))
            rows.append(Row(name=f"{name}: memory off by", value=off, unit="%", at_most=MOST))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("steps", type=Path, help="measured steps")
    parser.add_argument("--machine", default="cpu", help="of machines.json")
    parser.add_argument("--device", default=None, help="what they were measured on")
    parser.add_argument("--name", default=None, help="of the result")
    arguments = parser.parse_args()
    steps = json.loads(arguments.steps.read_text())["steps"]
    machine = machine_named(arguments.machine)
    rows = rows_of(steps, machine)
    for part in ("off by", "memory off by"):
        values = [row.value for row in rows if row.name.endswith(f": {part}")]
        if values:
            rows.append(Row(name=f"worst {part}", value=max(values), unit="%"))
    notes = (
        "Steps of the two-tower through the training loop, beside what the plan computes from the "
        "constants of machines.json."
    )
    name = arguments.name or f"steps_{arguments.machine}"
    write_results(name, rows, notes=notes, device=arguments.device)


if __name__ == "__main__":
    main()
