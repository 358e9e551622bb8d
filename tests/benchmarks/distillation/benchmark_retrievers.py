"""Distil a costly retriever into a small one: size, latency on one core, kept accuracy.

Teachers, on prepared arrays of a data set: ``ensemble``, several sequence models whose scores are
averaged; ``generative``, the generative model with its beam search; ``blend_fast`` and ``blend``,
all sources of a recipe merged as they are served, the last with the generative model. Students are
sequence models and two-towers, taught or by labels alone. Models learn from all but the last two
events of each user, their best step is picked on validation; numbers are of validation users, or
with ``--split test`` of test users, which is a look for the ledger. Latencies are those of one
request of twenty events on one core, to a list of 100, measured where the table is made.

    recsys reproduce CARD --prepare FOLDER
    python -m tests.benchmarks.distillation.benchmark_retrievers train FOLDER --raw a.json
    python -m tests.benchmarks.distillation.benchmark_retrievers table FOLDER --raw a.json
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.distillation.students import (
    METRICS,
    Lesson,
    Settings,
    ensemble_rows,
    member,
    student_rows,
)
from tests.benchmarks.distillation.table import write_table
from tests.benchmarks.distillation.teachers import listing_rows
from tests.benchmarks.harness import command_line, device_name

TEACHERS = ("ensemble", "generative", "blend_fast", "blend")
LESSONS = {
    "ensemble": [
        Lesson(student="sequence", teacher="ensemble", soft_share=0.3, passes=1.3),
    ],
    "generative": [
        Lesson(student="two_tower", teacher="generative", soft_share=0.3, embedding_dim=64),
    ],
    "blend_fast": [
        Lesson(student="sequence", teacher="blend_fast", soft_share=0.5),
    ],
    "blend": [
        Lesson(student="sequence", teacher="blend", embedding_dim=128, num_members=1),
    ],
}
"""Of each teacher, as chosen on validation."""


def listed(settings: Settings, teachers: list[str], folder: Path) -> list[dict[str, Any]]:
    """Train and measure teachers that speak in lists, in a process of their own."""
    experiment = settings.experiment(settings.seed)
    return listing_rows(experiment, teachers, folder, settings.splits(), settings.more, METRICS)


def train_all(
    settings: Settings, teachers: list[str], lessons: list[Lesson], workers: int, raw: Path
) -> None:
    """Train teachers and students, processes side by side; write every row as it comes."""
    rows: list[dict[str, Any]] = []
    device = torch.cuda.get_device_name() if settings.device == "cuda" else device_name()

    def note(done: Future[list[dict[str, Any]]]) -> None:
        rows.extend(done.result())
        print("\n".join(map(json.dumps, done.result())), flush=True)
        document = {**asdict(settings), "device": device, "rows": rows}
        raw.write_text(json.dumps(document, indent=1))

    def of(*teachers: str | None) -> list[Lesson]:
        return [one for one in lessons if one.teacher in teachers]

    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        folder = Path(scratch)
        speaking = [one for one in teachers if one != "ensemble"]
        said = pool.submit(listed, settings, speaking, folder) if speaking else None
        members = []
        if "ensemble" in teachers:
            numbers = range(settings.num_members)
            members = [pool.submit(member, settings, number, folder) for number in numbers]
        waiting = {pool.submit(student_rows, settings, one, folder) for one in of(None, "itself")}
        if said is not None:
            waiting.add(said)
        wait(members)
        if members:
            waiting.add(pool.submit(ensemble_rows, settings, folder))
            waiting |= {pool.submit(student_rows, settings, one, folder) for one in of("ensemble")}
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for done in finished:
                note(done)
                if done is said:
                    taught = of(*speaking)
                    waiting |= {pool.submit(student_rows, settings, one, folder) for one in taught}


def lessons_for(teachers: list[str], given: str | None) -> list[Lesson]:
    """Read lessons, by default those of the teachers, with each student untaught beside them."""
    if given is not None:
        return [Lesson(**one) for one in json.loads(given)]
    taught = [lesson for teacher in teachers for lesson in LESSONS[teacher]]
    alone = [
        Lesson(
            student=one.student,
            teacher=None,
            embedding_dim=one.embedding_dim,
            num_members=one.num_members,
        )
        for one in taught
    ]
    return [*taught, *dict.fromkeys(alone)]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("what", choices=("train", "table"))
    parser.add_argument("data", help="folder of prepared arrays; of their folders for the table")
    parser.add_argument("--raw", type=Path, nargs="+", required=True, help="numbers of training")
    parser.add_argument("--teachers", nargs="+", default=["ensemble"], choices=TEACHERS)
    parser.add_argument("--members", type=int, default=6, help="models of an ensemble")
    parser.add_argument("--lessons", help="students as JSON, in place of those that were chosen")
    parser.add_argument("--more", type=int, default=4, help="histories that a teacher makes up")
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--passes", type=float, default=1.0, help="share of the recipe's passes")
    parser.add_argument("--name", default="retrievers", help="of the results")
    chosen = parser.parse_args()
    if chosen.what == "table":
        write_table(chosen.name, Path(chosen.data), chosen.raw)
        return
    settings = Settings(
        data=chosen.data,
        split=chosen.split,
        device=chosen.device,
        seed=chosen.seed,
        num_members=chosen.members,
        passes=chosen.passes,
        more=chosen.more,
    )
    lessons = lessons_for(chosen.teachers, chosen.lessons)
    train_all(settings, chosen.teachers, lessons, chosen.workers, chosen.raw[0])


if __name__ == "__main__":
    main()
