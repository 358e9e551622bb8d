"""Whole trainings on a GPU with our kernels and captured steps, and without.

The parts are measured one by one on a machine with a GPU (``tests.benchmarks.training.parts``);
this makes the page of what they wrote:

    python -m tests.benchmarks.training.benchmark_whole_training PARTS --device "NVIDIA H200"

``plain`` is the same code with ``RECSYS_KERNELS_OFF=all``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import RESULTS, Row, command_line, write_results

GOALS = {("whole", "beauty"): 30.0}
"""Seconds that a whole recipe may take."""
Parts = Mapping[tuple[str, str, bool], Any]


def read_parts(folder: Path) -> dict[tuple[str, str, bool], Any]:
    """Read what was measured, by part, arrays and whether it was plain."""
    found = {}
    for path in sorted(folder.glob("*.json*")):
        for line in path.read_text().splitlines():
            document = json.loads(line)
            if "found" in document:
                key = document["part"], document["arrays"], bool(document["plain"])
                found[key] = document["found"]
    return found


def rows_of_whole(parts: Parts) -> Iterator[Row]:
    """Compare whole recipes: seconds of all, and of each row."""
    for (part, arrays, plain), ours in parts.items():
        if not part.startswith("whole") or plain:
            continue
        other = parts.get((part, arrays, True))
        case = f"{arrays}, {'whole recipe' if part == 'whole' else 'one member'}"
        yield Row(
            name=f"{case}: all rows, with evaluation",
            value=round(ours["seconds"], 1),
            unit="s",
            peer="plain" if other else None,
            peer_value=other and other["seconds"],
            at_most=GOALS.get((part, arrays)),
        )
        for name, row in ours["rows"].items():
            before = other and other["rows"].get(name)
            yield Row(
                name=f"{case}: {name} (NDCG@10 {row['ndcg@10']:.4f})",
                value=row["seconds"],
                unit="s",
                peer=f"plain (NDCG@10 {before['ndcg@10']:.4f})" if before else None,
                peer_value=before and before["seconds"],
            )


def rows_of_steps(parts: Parts) -> Iterator[Row]:
    """Compare steps, of recipes and of the world."""
    for (part, arrays, plain), ours in parts.items():
        if part not in ("steps", "world") or plain:
            continue
        others = parts.get((part, arrays, True), {})
        for name, one in ours.items():
            other = others.get(name)
            if part == "world":
                more = f", {one['steps_a_pass']} steps a pass"
            else:
                more = f", {one['launches']:.0f} kernels, busy {one['busy_ms']:.2f} ms"
            yield Row(
                name=f"{arrays or '10M events'}, {name}: a step{more}",
                value=round(one["step_ms"], 2),
                unit="ms",
                peer="plain" if other else None,
                peer_value=other and other["step_ms"],
            )
            if part == "world":
                yield Row(
                    name=f"10M events, {name}: validation of 5,000 users",
                    value=round(one["validation_seconds"], 2),
                    unit="s",
                    peer="plain" if other else None,
                    peer_value=other and other["validation_seconds"],
                )


def rows_of_peers(parts: Parts) -> Iterator[Row]:
    """Show RecTools beside our model of the same data."""
    for (part, arrays, _), peer in parts.items():
        if part == "rectools":
            whole = parts.get(("whole", arrays, False))
            ours = whole["rows"]["sequence"]["seconds"] if whole else None
            yield Row(
                name=(
                    f"{arrays}: SASRec of RecTools 0.19, {peer['epochs']} epochs, fitted and "
                    f"ranked once (NDCG@10 {peer['ndcg@10']:.4f})"
                ),
                value=round(peer["fit_seconds"] + peer["ranking_seconds"], 1),
                unit="s",
                ours=ours,
            )


def write_shares(parts: Parts, path: Path) -> None:
    """Write the share of each kernel in the time of the device."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arrays", "model", "plain", "kernel", "share"])
        for (part, arrays, plain), found in parts.items():
            for model, one in found.items() if part == "steps" else ():
                for kernel, share in list(one["shares"].items())[:10]:
                    writer.writerow([arrays, model, int(plain), kernel[:70], f"{share:.3f}"])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("parts", type=Path, help="folder of what the parts wrote")
    parser.add_argument("--device", required=True)
    parser.add_argument("--commit", help="what was measured")
    parser.add_argument("--notes", default="")
    options = parser.parse_args()
    parts = read_parts(options.parts)
    rows = [*rows_of_whole(parts), *rows_of_steps(parts), *rows_of_peers(parts)]
    notes = (
        "Ratio: plain against ours; plain is the same code with `RECSYS_KERNELS_OFF=all`. Kernels' "
        f"shares of the device's time: `whole_training_shares.csv`. {options.notes}"
    )
    write_results("whole_training", rows, notes=notes, device=options.device, commit=options.commit)
    write_shares(parts, RESULTS / "training" / "whole_training_shares.csv")


if __name__ == "__main__":
    main()
