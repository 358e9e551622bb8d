"""Distil a costly retriever into a small one: size, latency on one core, kept accuracy.

Teachers, on prepared arrays of a data set: ``ensemble``, several sequence models whose scores are
averaged; ``generative``, the generative model with its beam search; ``blend_fast`` and ``blend``,
all sources of a recipe merged as they are served, the last with the generative model. Students are
sequence models and two-towers, distilled or trained on labels alone. Models learn from all but the
last two events of each user, their best step is picked on validation; metrics are of validation
users, or with ``--split test`` of test users, which is a look for the ledger. Latencies are those
of one request of twenty events on one core, to a list of 100, measured where the table is made.

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
    Settings,
    StudentPlan,
    ensemble_rows,
    member,
    student_rows,
)
from tests.benchmarks.distillation.table import write_table
from tests.benchmarks.distillation.teachers import listing_rows
from tests.benchmarks.harness import command_line, device_name

TEACHERS = ("ensemble", "generative", "blend_fast", "blend")
STUDENTS = {
    "ensemble": [
        StudentPlan(student="sequence", teacher="ensemble", soft_share=0.3, passes=1.3),
    ],
    "generative": [
        StudentPlan(student="two_tower", teacher="generative", soft_share=0.3, embedding_dim=64),
    ],
    "blend_fast": [
        StudentPlan(student="sequence", teacher="blend_fast", soft_share=0.5),
    ],
    "blend": [
        StudentPlan(student="sequence", teacher="blend", embedding_dim=128, num_members=1),
    ],
}
"""Of each teacher, as chosen on validation."""


def listed(settings: Settings, teachers: list[str], folder: Path) -> list[dict[str, Any]]:
    """Train and measure teachers that give lists, in a process of their own."""
    experiment = settings.experiment(settings.seed)
    return listing_rows(experiment, teachers, folder, settings.splits(), settings.more, METRICS)


def train_all(
    settings: Settings, teachers: list[str], students: list[StudentPlan], workers: int, raw: Path
) -> None:
    """Train teachers and students, processes side by side; write every row as it comes."""
    rows: list[dict[str, Any]] = []
    device = torch.cuda.get_device_name() if settings.device == "cuda" else device_name()

    def note(done: Future[list[dict[str, Any]]]) -> None:
        rows.extend(done.result())
        print("\n".join(map(json.dumps, done.result())), flush=True)
        document = {**asdict(settings), "device": device, "rows": rows}
        raw.write_text(json.dumps(document, indent=1))

    def of(*teachers: str | None) -> list[StudentPlan]:
        return [one for one in students if one.teacher in teachers]

    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        folder = Path(scratch)
        listing = [one for one in teachers if one != "ensemble"]
        listed_rows = pool.submit(listed, settings, listing, folder) if listing else None
        members = []
        if "ensemble" in teachers:
            numbers = range(settings.num_members)
            members = [pool.submit(member, settings, number, folder) for number in numbers]
        waiting = {pool.submit(student_rows, settings, one, folder) for one in of(None, "itself")}
        if listed_rows is not None:
            waiting.add(listed_rows)
        wait(members)
        if members:
            waiting.add(pool.submit(ensemble_rows, settings, folder))
            waiting |= {pool.submit(student_rows, settings, one, folder) for one in of("ensemble")}
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for done in finished:
                note(done)
                if done is listed_rows:
                    taught = of(*listing)
                    waiting |= {pool.submit(student_rows, settings, one, folder) for one in taught}


def students_for(teachers: list[str], given: str | None) -> list[StudentPlan]:
    """Read students, by default those of the teachers, each also trained on labels alone."""
    if given is not None:
        return [StudentPlan(**one) for one in json.loads(given)]
    taught = [one for teacher in teachers for one in STUDENTS[teacher]]
    alone = [
        StudentPlan(
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
    parser.add_argument("--students", help="students as JSON, in place of those that were chosen")
    parser.add_argument(
        "--more",
        type=int,
        default=4,
        help="augmented histories a user, for teachers that give lists",
    )
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
    students = students_for(chosen.teachers, chosen.students)
    train_all(settings, chosen.teachers, students, chosen.workers, chosen.raw[0])


if __name__ == "__main__":
    main()
