"""The table of ``benchmark_distillation.py``: sizes, kept accuracy, latencies measured here.

What a request takes does not depend on weights, so models are made as large as those that were
trained, and not trained again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from results_file import Row, write_results
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.generative import GenerativeModel
from recsys.models.sequence import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.generation import codes_of, generative_inputs
from recsys.reproduction.prepared import Prepared
from recsys.retrieval.beam_search import BeamSearch
from recsys.semantic_ids.trie import Trie
from recsys.training.list_distillation import Ensemble

METRIC = "ndcg@10"
LIST = 100
EVENTS = 20
KEPT, SHARE = 0.98, 0.2
SECONDS = 8.0

Answer = Callable[[], Tensor]
Numbers = dict[str, Any]


class Timed:
    """Models of the sizes of a data set, each answering one request."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(1, prepared.num_item_rows, (EVENTS,), generator=generator)
        bounds = torch.tensor([0, EVENTS])
        features = {"history": Jagged(rows, bounds)}
        if prepared.order("given").times is not None:
            times = torch.arange(EVENTS) * 86_400 + 1_300_000_000
            features["history.times"] = Jagged(times, bounds)
        self.queries = JaggedBatch(features)

    def counts(self) -> Tensor:
        return torch.ones(self.prepared.num_item_rows, dtype=torch.int64)

    def listed(self, score: Callable[[JaggedBatch], Tensor]) -> Answer:
        return lambda: score(self.queries).topk(LIST).indices

    def sequence(self, dim: int | None) -> SequenceModel:
        prepared = self.prepared
        config = prepared.recipe.sequence
        config = replace(config, embedding_dim=dim or config.embedding_dim)
        return SequenceModel(config, prepared.sizes(), prepared.catalogue, self.counts()).eval()

    def two_tower(self, dim: int | None) -> TwoTower:
        prepared = self.prepared
        config = prepared.recipe.two_tower
        config = replace(config, embedding_dim=dim or config.embedding_dim)
        return TwoTower(config, prepared.sizes(), prepared.catalogue, self.counts()).eval()

    def generative(self) -> Answer:
        prepared, codes = self.prepared, codes_of(self.prepared)
        model = GenerativeModel(
            prepared.recipe.generative,
            generative_inputs(prepared, codes),
            codes.codes,
            prepared.catalogue,
            self.counts(),
        ).eval()
        trie = Trie.of_item_codes(codes.codes, codes.level_sizes, version="timed")
        search = BeamSearch(
            model.decode_step,
            trie,
            beam_width=prepared.recipe.beam_width,
            semantic_ids_version="timed",
        )
        return lambda: search.lists(model.context(self.queries), LIST).item_rows

    def answer(self, row: Numbers) -> Answer:
        """Make what a row of numbers is of."""
        if "student" in row:
            make = self.sequence if row["student"] == "sequence" else self.two_tower
            return self.listed(make(row["embedding_dim"]).score)
        if row["teacher"] == "generative":
            return self.generative()
        return self.listed(Ensemble([self.sequence(None) for _ in range(row["members"])]).score)


def name_of(row: Numbers) -> str:
    if "student" not in row:
        members = f" of {row['members']} sequence models" if "members" in row else " model"
        return f"{row['teacher']}{members}"
    size = f" of width {row['embedding_dim']}" if row["embedding_dim"] else ""
    taught = f"taught by the {row['teacher']}" if row["teacher"] else "of labels alone"
    if row["teacher"]:
        taught += f" ({row['soft_share']:g} soft)"
    if row["passes"] != 1:
        taught += f", {row['passes']:g}x passes"
    return f"{row['student'].replace('_', '-')}{size} {taught}"


@torch.inference_mode()
def median_ms(answers: dict[str, Answer]) -> dict[str, float]:
    """Alternate the requests; the process's own milliseconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in answers}
    for answer in [*answers.values(), *answers.values()]:
        answer()
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        for name, answer in answers.items():
            begin = time.process_time()
            answer()
            taken[name].append(1_000 * (time.process_time() - begin))
    return {name: statistics.median(values) for name, values in taken.items()}


def kind_of(row: Numbers) -> str:
    """Name what decides a latency."""
    if "student" in row:
        return f"{row['student']} {row['embedding_dim']}"
    return f"{row['teacher']} {row.get('members', 1)}"


def rows_of(runs: list[list[Numbers]], ms: dict[str, float], label: str) -> list[Row]:
    """Lay one teacher's runs out, means over seeds."""
    names = [name_of(row) for row in runs[0]]

    def mean(name: str, what: str) -> float:
        found = [row[what] for run in runs for row in run if name_of(row) == name]
        return float(sum(found) / len(found))

    teacher = next(row for row in runs[0] if "student" not in row)
    best, slow = mean(name_of(teacher), METRIC), ms[kind_of(teacher)]
    rows = []
    for name, row in zip(names, runs[0], strict=True):
        value, own = mean(name, METRIC), ms[kind_of(row)]
        what = f"{label}, {name}"
        million = mean(name, "num_parameters") / 1e6
        rows.append(Row(name=f"{what}: parameters", value=million, unit="million"))
        taught = bool(row.get("student") and row["teacher"])
        is_student = "student" in row
        rows.append(
            Row(
                name=f"{what}: N@10",
                value=value,
                unit="",
                peer=name_of(teacher) if is_student else None,
                ratio=value / best if is_student else None,
                goal=f">= {KEPT:.0%} of the teacher's" if taught else None,
                met=value >= KEPT * best if taught else None,
            )
        )
        rows.append(
            Row(
                name=f"{what}: one request",
                value=own,
                unit="ms",
                peer=name_of(teacher) if is_student else None,
                ratio=slow / own if is_student else None,
                goal="<= 1/5 of the teacher's" if taught else None,
                met=own <= SHARE * slow if taught else None,
            )
        )
    return rows


def write_table(name: str, folder: Path, paths: list[Path]) -> None:
    """Measure latencies and write the table of all runs; one teacher's seeds together."""
    torch.set_num_threads(1)
    runs: dict[tuple[str, str], list[list[Numbers]]] = {}
    splits, devices, shortened = set(), set(), []
    for path in paths:
        document = json.loads(path.read_text())
        rows = sorted(document["rows"], key=lambda row: ("student" in row, str(name_of(row))))
        runs.setdefault((Path(document["data"]).name, rows[0]["teacher"]), []).append(rows)
        splits.add(document["split"])
        devices.add(document["device"])
        if document["passes"] != 1:
            shortened.append(f"{rows[0]['teacher']}: {document['passes']:g}")
    table: list[Row] = []
    for (data, teacher), some in runs.items():
        timed = Timed(Prepared.load(folder / data))
        ms = median_ms({kind_of(row): timed.answer(row) for row in some[0]})
        label = f"{data} ({len(some)} seed{'s' if len(some) > 1 else ''})"
        del teacher
        table += rows_of(some, ms, label)
    notes = (
        f"N@10 of the whole catalogue on {' and '.join(sorted(splits))} users, history left out; "
        f"trained on {', '.join(sorted(devices))}. One request: a history of {EVENTS} events to a "
        f"list of {LIST}, one core of this machine, untrained models of the same sizes."
    )
    if shortened:
        notes += f" Share of the recipe's passes that was trained: {', '.join(shortened)}."
    write_results(name, table, notes=notes)
