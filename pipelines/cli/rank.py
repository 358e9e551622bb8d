"""One rank of a stage that runs on several; started by ``pipelines/engine/launch.py``.

python -m pipelines.cli.rank [FOLDER_OF_THE_LAUNCH]; ranks on another machine read the
folder from torch's store, into which the first machine's write it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.rendezvous import rendezvous

from features.parallel import end_with_the_parent
from pipelines.config.run import RunConfig
from pipelines.config.toml import validate
from pipelines.engine.artifacts import RunLog
from pipelines.engine.console import EXIT_CODES
from pipelines.engine.launch import ERROR, JOB, LOGGED, RAISED, ROWS, heartbeat
from pipelines.engine.stage import StageContext
from pipelines.engine.torchrun import LOG
from pipelines.engine.workspace import Workspace
from pipelines.stages.list import STAGES
from recsys.training.distributed.several import RanksError, local_device, process_group
from recsys.training.ranks import means_full

FOLDER = "recsys/folder"


class LogFile(RunLog):
    """Writes the log to a file, which the launching process reads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def log(self, step: int, **values: float) -> None:
        self._write("log", (step, values))

    def metrics(self, values: Mapping[str, float]) -> None:
        self._write("metrics", dict(values))

    def tags(self, values: Mapping[str, str]) -> None:
        self._write("tags", dict(values))

    def _write(self, kind: str, arguments: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, arguments]) + "\n")


def build_context(job: Mapping[str, Any], folder: Path, rank: int) -> StageContext:
    """Build the stage's context; further ranks write to folders that are discarded."""
    config = validate(RunConfig, job["config"], JOB)
    output = Path(job["output"])
    if rank:
        output = folder / f"output-{rank}"
        output.mkdir()
    return StageContext(
        config=config,
        workspace=Workspace(config.workspace),
        inputs={name: Path(path) for name, path in job["inputs"].items()},
        output=output,
        checkpoints=Path(job["checkpoints"]),
        making=job["making"],
        show_progress=job["show_progress"] and rank == 0,
        run=RunLog() if rank else LogFile(folder / LOGGED),
    )


def describe_error(error: BaseException, rank: int) -> dict[str, object]:
    """Describe an error for the launching process."""
    kind = next((name for name, one in RAISED.items() if isinstance(error, one)), "")
    lines = str(error).splitlines()
    message = str(error) if kind else (lines[0] if lines else repr(error))
    if isinstance(error, RanksError):
        kind = "ValueError"
    elif means_full(error):
        kind = "MemoryError"
        message = (
            f"rank {rank} on {platform.node()}: {message} Make batch_size of the stage's training "
            "smaller, take more GPUs (torchrun.processes), or shard smaller tables too "
            "(torchrun.shard_from)"
        )
    return {"rank": rank, "time": time.time(), "kind": kind, "message": message}


def work(folder: Path, rank: int, size: int) -> None:
    """Run the job's stage as one rank."""
    job = json.loads((folder / JOB).read_text())
    context = build_context(job, folder, rank)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    stage = next(one for one in STAGES if one.name == job["stage"])
    device = local_device("cpu" if context.config.device == "cpu" else "auto")
    wait_seconds = context.config.torchrun.wait_seconds
    with process_group(device, wait_seconds), heartbeat(folder, rank):
        rows = stage.function(context)
    if rank == 0:
        (folder / ROWS).write_text(json.dumps(asdict(rows)))


def folder_of_the_launch(arguments: list[str]) -> Path:
    """Return the folder of the launch; tell it to, or hear it from, ranks of other machines."""
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return Path(arguments[0])
    store, _, _ = next(rendezvous("env://"))
    if arguments:
        store.set(FOLDER, arguments[0])
    return Path(store.get(FOLDER).decode())


def main() -> None:
    """Work, or write down why not."""
    end_with_the_parent()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = folder_of_the_launch(sys.argv[1:])
    if rank:
        # With what libraries print.
        with (folder / LOG.format(rank)).open("ab") as log:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log.fileno(), stream.fileno())
    try:
        work(folder, rank, size)
    except Exception as error:
        (folder / ERROR.format(rank)).write_text(json.dumps(describe_error(error, rank)))
        if not isinstance(error, tuple(EXIT_CODES)) or os.environ.get("RECSYS_TRACEBACK"):
            traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        # Not by the usual way: to leave a group whose other ranks are gone can hang.
        os._exit(1)


if __name__ == "__main__":
    main()
