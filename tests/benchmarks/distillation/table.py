"""The table of ``benchmark_retrievers.py``: sizes, kept accuracy, latencies measured here."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from recsys.reproduction.prepared import Prepared
from tests.benchmarks.distillation.latency import EVENTS, LIST, Numbers, Timed, kind_of, median_ms
from tests.benchmarks.harness import Row, write_results

METRIC = "ndcg@10"
KEPT, SHARE = 0.98, 0.2
TEACHERS = {
    "generative": "generative model",
    "blend": "blend of all sources",
    "blend_fast": "blend without the beam",
}


def accuracy_row(
    name: str, value: float, teacher: str | None, best: float, *, is_bound: bool
) -> Row:
    """Hold a student's metric against its teacher's; without a teacher, the teacher's own."""
    return Row(
        name=name,
        value=value,
        peer=teacher,
        ratio=value / best if teacher else None,
        goal=f">= {KEPT:.0%} of the teacher's" if is_bound else None,
        at_least=KEPT * best if is_bound else None,
    )


def latency_row(name: str, own: float, teacher: str | None, slow: float, *, is_bound: bool) -> Row:
    """Hold a student's milliseconds against its teacher's."""
    return Row(
        name=name,
        value=own,
        unit="ms",
        peer=teacher,
        ratio=slow / own if teacher else None,
        goal="<= 1/5 of the teacher's" if is_bound else None,
        at_most=SHARE * slow if is_bound else None,
    )


def name_of(row: Numbers) -> str:
    if "student" not in row:
        return TEACHERS.get(row["teacher"]) or f"mean of {row['members']} sequence models"
    size = f" of width {row['embedding_dim']}" if row["embedding_dim"] else ""
    taught = "of labels alone"
    if row["teacher"] == "itself":
        taught = f"of self-auxiliary labels ({row['soft_share']:g} believed)"
    elif row["teacher"]:
        taught = f"taught by the {row['teacher'].replace('_', ' ')} ({row['soft_share']:g} soft)"
    if row["passes"] != 1:
        taught += f", {row['passes']:g}x passes"
    beside = " beside item-to-item" if row["beside"] else ""
    return f"{row['student'].replace('_', '-')}{size} {taught}{beside}"


def sections(rows: list[Numbers]) -> dict[str, list[Numbers]]:
    """Put each teacher before its students, and before similar ones trained without it."""
    found = {}
    for teacher in (row for row in rows if "student" not in row):
        taught = [row for row in rows if "student" in row and row["teacher"] == teacher["teacher"]]
        kinds = {kind_of(row) for row in taught}
        alone = [
            row
            for row in rows
            if "student" in row and row["teacher"] in (None, "itself") and kind_of(row) in kinds
        ]
        found[name_of(teacher)] = [teacher, *sorted(taught + alone, key=name_of)]
    return found


def rows_of(runs: list[list[Numbers]], ms: dict[str, float], label: str) -> list[Row]:
    """Lay one data set's runs out, means over seeds."""
    table = []
    for teacher, some in sections(runs[0]).items():
        best, slow = _mean(runs, teacher, METRIC), ms[kind_of(some[0])]
        for row in some:
            name, own = name_of(row), ms[kind_of(row)]
            value, million = _mean(runs, name, METRIC), _mean(runs, name, "num_parameters") / 1e6
            is_student, is_taught = "student" in row, "student" in row and bool(row["teacher"])
            what, peer = f"{label}, {name}", teacher if is_student else None
            table += [
                Row(name=f"{what}: parameters", value=million, unit="million"),
                accuracy_row(f"{what}: N@10", value, peer, best, is_bound=is_taught),
                latency_row(f"{what}: one request", own, peer, slow, is_bound=is_taught),
            ]
    return table


def _mean(runs: list[list[Numbers]], name: str, what: str) -> float:
    found = [row[what] for run in runs for row in run if name_of(row) == name]
    return float(sum(found) / len(found))


def seeds_of(runs: list[list[Numbers]], label: str) -> str:
    """Say what each seed gave."""
    lines = [f"\n{label}, N@10 by seed:\n"]
    for row in runs[0]:
        found = [one[METRIC] for run in runs for one in run if name_of(one) == name_of(row)]
        lines.append(f"- {name_of(row)}: {', '.join(f'{value:.4f}' for value in found)}")
    return "\n".join(lines)


def write_table(name: str, folder: Path, paths: list[Path]) -> None:
    """Measure latencies and write the table of all runs; one data set's seeds together."""
    torch.set_num_threads(1)
    runs: dict[tuple[str, frozenset[str]], list[list[Numbers]]] = {}
    splits, devices, shortened = set(), set(), set()
    for path in paths:
        document = json.loads(path.read_text())
        rows = sorted(document["rows"], key=name_of)
        teachers = frozenset(row["teacher"] for row in rows if "student" not in row)
        runs.setdefault((Path(document["data"]).name, teachers), []).append(rows)
        splits.add(document["split"])
        devices.add(document["device"])
        shortened.add(document["passes"])
    table: list[Row] = []
    text = ""
    for (data, _), all_rows in runs.items():
        # What a run was cut before has no mean.
        complete = set.intersection(*({name_of(row) for row in run} for run in all_rows))
        some = [[row for row in run if name_of(row) in complete] for run in all_rows]
        timed = Timed(Prepared.load(folder / data))
        ms = median_ms({kind_of(row): timed.request(row) for row in some[0]})
        label = f"{data} ({len(some)} seed{'s' if len(some) > 1 else ''})"
        table += rows_of(some, ms, label)
        text += "\n" + seeds_of(some, label)
    notes = (
        f"N@10 of the whole catalogue on {' and '.join(sorted(splits))} users, history left out; "
        f"trained on {', '.join(sorted(devices))}. One request: a history of {EVENTS} events to a "
        f"list of {LIST}, one core of this machine, the catalogue's vectors made before, untrained "
        "models of the same sizes, teacher and students in turns."
    )
    if shortened != {1.0}:
        notes += f" Share of the recipe's passes that was trained: {sorted(shortened)}."
    write_results(name, table, notes=notes + text)
