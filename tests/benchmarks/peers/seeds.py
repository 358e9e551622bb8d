"""Set the seeds of a backtest side by side: served lists, sources, and the best peer.

    python -m tests.benchmarks.peers.seeds FOLDER FOLDER ... [--write NAME]

Folders hold the same replay by different seeds, each with its ``backtest.json``; peers are those of
the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Row, as_table, write_results
from tests.benchmarks.peers.folder import Backtest
from tests.benchmarks.peers.table import PEER, line_of, names_of

METRIC = "ndcg@10"
SERVED = "served"


def value_of(document: Mapping[str, Any], policy: str, row: str) -> float:
    """Find a row's mean over the steps."""
    found = (one for one in document["summary"] if (one["policy"], one["row"]) == (policy, row))
    return float(next(found)["metrics"][METRIC])


def rows_of(documents: Sequence[Mapping[str, Any]], best_peer: float, peer: str) -> list[Row]:
    """Write mean, deviation and each seed's value of all rows of all policies.

    A row that the seed does not change has its mean alone.

    Raises:
        ValueError: The documents are of other data or steps.
    """
    first = documents[0]
    for one in documents[1:]:
        if (one["data_digest"], one["steps"]) != (first["data_digest"], first["steps"]):
            raise ValueError(
                f"seed {one['seed']} replays other data or steps than seed {first['seed']}; "
                "name folders of one replay"
            )
    rows = []
    names = [(one["policy"], one["row"]) for one in first["summary"] if one["policy"] != "peer"]
    for policy, row in names:
        values = [value_of(document, policy, row) for document in documents]
        mean, is_served = statistics.mean(values), row == SERVED
        case = f"{policy}.{row}"
        rows.append(
            Row(
                name=f"{case}: mean",
                value=round(mean, 4),
                peer=peer if is_served else None,
                ratio=mean / best_peer if is_served else None,
            )
        )
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        if deviation == 0 and len(values) > 1:
            continue
        rows.append(Row(name=f"{case}: sd", value=round(deviation, 4)))
        for document, value in zip(documents, values, strict=True):
            rows.append(Row(name=f"{case}: seed {document['seed']}", value=round(value, 4)))
    return rows


def notes_of(documents: Sequence[Mapping[str, Any]]) -> str:
    """Say how far the served list is above its best source, by seed."""
    lines = [f"NDCG@10, means of {len(documents[0]['steps'])} steps.", ""]
    for document in documents:
        for lead in document["leads"]:
            below = sum(one["difference"] < -one["standard_error"] for one in lead["steps"])
            lines.append(
                f"- seed {document['seed']}, {lead['policy']}: served {lead['difference']:+.4f} "
                f"against {lead['member']} (standard error {lead['standard_error']:.4f}); below "
                f"the step's best source by more than one standard error on {below} of "
                f"{len(lead['steps'])} steps"
            )
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", help="name of the result in results/peers")
    parser.add_argument("--note", default="", help="a sentence below the rows")
    options = parser.parse_args()
    documents = [json.loads((one / "backtest.json").read_text()) for one in options.folders]
    backtest = Backtest(options.folders[0])
    peers = [line_of(backtest, name) for name in names_of(backtest) if name.startswith(PEER)]
    best = max(peers, key=lambda line: (line.num_steps, line.ndcg))
    rows, notes = rows_of(documents, best.ndcg, best.name), notes_of(documents)
    notes += f"\n\n{options.note}" if options.note else ""
    if options.write:
        write_results(options.write, rows, notes=notes)
    else:
        sys.stdout.write(f"{as_table(rows)}\n\n{notes}\n")


if __name__ == "__main__":
    main()
