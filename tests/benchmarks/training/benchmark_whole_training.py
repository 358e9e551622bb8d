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
from typing import Any, NamedTuple

from tests.benchmarks.harness import RESULTS, Row, command_line, write_results

GOALS = {("whole", "beauty"): 30.0}
"""Seconds that a whole recipe may take."""
CASES = {"whole": "whole recipe", "whole_sequence": "one member", "whole_ensemble": "all members"}
PEERS = {
    "rectools": "RecTools 0.19",
    "rectools_fast": "RecTools 0.19, fast_transformers",
    "world_rectools": "RecTools 0.19",
    "world_rectools_fast": "RecTools 0.19, fast_transformers",
}
WORLD = "10M events"
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
        case = f"{arrays}, {CASES[part]}"
        yield Row(
            name=f"{case}, all rows with evaluation",
            value=round(ours["seconds"], 1),
            unit="s",
            peer="plain" if other else None,
            peer_value=other and other["seconds"],
            at_most=GOALS.get((part, arrays)),
        )
        for name, row in ours["rows"].items():
            before = other and other["rows"].get(name)
            yield Row(
                name=f"{case}, {name} (NDCG@10 {row['ndcg@10']:.4f})",
                value=row["seconds"],
                unit="s",
                peer=f"plain (NDCG@10 {before['ndcg@10']:.4f})" if before else None,
                peer_value=before and before["seconds"],
            )


def rows_of_steps(parts: Parts) -> Iterator[Row]:
    """Compare steps of recipes."""
    for (part, arrays, plain), ours in parts.items():
        if part not in ("steps", "world_steps") or plain:
            continue
        others = parts.get((part, arrays, True), {})
        for name, one in ours.items():
            other = others.get(name)
            more = f"{one['launches']:.0f} kernels, busy {one['busy_ms']:.2f} ms"
            yield Row(
                name=f"{arrays or WORLD}, {name}, a step, {more}",
                value=round(one["step_ms"], 2),
                unit="ms",
                peer="plain" if other else None,
                peer_value=other and other["step_ms"],
            )


def rows_of_world(parts: Parts) -> Iterator[Row]:
    """Compare passes of the world's models, and their validation."""
    for name, one in parts.get(("world", "", False), {}).items():
        other = parts.get(("world", "", True), {}).get(name)
        what = f"a pass of {one['steps_a_pass']} steps (NDCG@10 {one['ndcg@10']:.4f})"
        for about, key in ((what, "fit_seconds"), ("5,000 users ranked", "validation_seconds")):
            yield Row(
                name=f"{WORLD}, {name}, {about}",
                value=round(one[key], 2),
                unit="s",
                peer=f"plain (NDCG@10 {other['ndcg@10']:.4f})" if other else None,
                peer_value=other and other[key],
            )


class Rate(NamedTuple):
    """What our model beside a peer took."""

    seconds: float
    """Fitted and ranked."""
    a_pass: float
    """Seconds of training for a million events."""


def rate_beside(parts: Parts, part: str, arrays: str) -> Rate | None:
    """Find our sequence model of a peer's data."""
    if part.startswith("world"):
        found = parts.get(("world", "", False))
        if found is None:
            return None
        own = found["sequence, all items"]
        a_pass = own["fit_seconds"] / own["events"] * 1e6
        return Rate(own["fit_seconds"] + own["validation_seconds"], a_pass)
    for whole in ("whole", "whole_sequence"):
        if found := parts.get((whole, arrays, False)):
            own = found["rows"]["sequence"]
            passes = own["steps"] / found["sequence_steps_a_pass"]
            return Rate(own["seconds"], own["fit_seconds"] / passes / found["events"] * 1e6)
    return None


def rows_of_peers(parts: Parts) -> Iterator[Row]:
    """Show RecTools beside our sequence model of the same data."""
    for (part, arrays, _), peer in parts.items():
        if part not in PEERS:
            continue
        ours, case = rate_beside(parts, part, arrays), f"{arrays or WORLD}, SASRec of {PEERS[part]}"
        count = "one pass" if peer["passes"] == 1 else f"{peer['passes']} passes"
        whole = f"{count}, fitted and ranked (NDCG@10 {peer['ndcg@10']:.4f})"
        seconds = peer["preparing_seconds"] + peer["fit_seconds"] + peer["ranking_seconds"]
        yield Row(
            name=f"{case}, {whole}",
            value=round(seconds, 1),
            unit="s",
            ours=ours.seconds if ours else None,
        )
        yield Row(
            name=f"{case}, a pass over a million events",
            value=round(peer["fit_seconds"] / peer["passes"] / peer["events"] * 1e6, 2),
            unit="s",
            ours=ours and ours.a_pass,
        )


def write_shares(parts: Parts, path: Path) -> None:
    """Write the share of each kernel in the time of the device."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arrays", "model", "plain", "kernel", "share"])
        for (part, arrays, plain), found in parts.items():
            for model, one in found.items() if part.endswith("steps") else ():
                for kernel, share in list(one["shares"].items())[:10]:
                    writer.writerow(
                        [arrays or WORLD, model, int(plain), kernel[:70], f"{share:.3f}"]
                    )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("parts", type=Path, help="folder of what the parts wrote")
    parser.add_argument("--device", required=True)
    parser.add_argument("--commit", help="what was measured")
    parser.add_argument("--name", default="whole_training", help="of the page")
    parser.add_argument("--notes", default="")
    options = parser.parse_args()
    parts = read_parts(options.parts)
    rows = [
        *rows_of_whole(parts),
        *rows_of_world(parts),
        *rows_of_peers(parts),
        *rows_of_steps(parts),
    ]
    notes = (
        "Ratio: plain against ours; plain is the same code with `RECSYS_KERNELS_OFF=all`. Kernels' "
        f"shares of the device's time: `whole_training_shares.csv`. {options.notes}"
    )
    write_results(options.name, rows, notes=notes, device=options.device, commit=options.commit)
    if any(part.endswith("steps") for part, *_ in parts):
        write_shares(parts, RESULTS / "training" / "whole_training_shares.csv")


if __name__ == "__main__":
    main()
