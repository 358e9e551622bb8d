"""Run a training stage on several processes (ranks), started by torch's elastic launcher.

Every rank does the whole stage, on the same events and with the same seeds, and in its trainings
works on its part of each batch (``recsys/training/distributed``). What the first rank writes is the
artefact. So no stage knows how many ranks there are.

Beside the stage's checkpoints lies a folder of the launch: what is run (``job.json``), each rank's
latest step and error, the logs of all ranks but the first, and what is logged for tracking.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.config.toml import plain
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.ray_launch import start_on_ray
from pipelines.engine.run_log import RunLog
from pipelines.engine.stage import Stage, StageContext, StageRows
from pipelines.engine.torchrun import Failure, Launch, start

ON_RAY = ("build_features", "embed_items", "train_ranker")
"""Stages that hand tasks to a Ray cluster."""
JOB, ROWS, LOGGED = "job.json", "rows.json", "logged.jsonl"
STEP, ERROR, LOG = "step-{}", "error-{}.json", "log-{}.txt"
SECONDS_BETWEEN_LOOKS = 1.0
TIMEOUT_WORDS = ("timed out", "timeout")
GOES_ON = "Run the same command again: it goes on from the newest checkpoint"
RAISED: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "MemoryError": MemoryError,
    "OSError": OSError,
    "UnstableTrainingError": UnstableTrainingError,
}
"""Errors of a rank that the launching process raises as they are."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every rank runs."""

    stage: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    output: str
    checkpoints: str
    making: str
    show_progress: bool


def num_ranks(config: RunConfig) -> int:
    """Count the ranks of a machine for a run's training stages."""
    import torch

    gpus = 0 if config.device == "cpu" else torch.cuda.device_count()
    return config.torchrun.processes or gpus or 2


def has_ranks(config: RunConfig) -> bool:
    """Say whether a run's training stages work on ranks."""
    return config.engine == "torchrun" or (config.engine == "ray" and config.ray.ranks > 1)


def called(stage: Stage, context: StageContext) -> StageRows:
    """Run a stage's function, here or on several ranks as the configuration says."""
    if stage.on_ranks(context.config) and has_ranks(context.config):
        return on_ranks(stage, context)
    return stage.function(context)


def engine_of(stage: Stage, config: RunConfig) -> dict[str, Any]:
    """Say for run.json where a stage worked."""
    on_ranks = stage.on_ranks(config) and has_ranks(config)
    if config.engine == "ray" and (on_ranks or stage.name in ON_RAY):
        return {"engine": "ray", **({"ranks": config.ray.ranks} if on_ranks else {})}
    if not on_ranks:
        return {"engine": "local"}
    machines = config.torchrun.machines
    several = {} if machines == 1 else {"machines": machines}
    return {"engine": config.engine, "ranks": machines * num_ranks(config), **several}


def on_ranks(stage: Stage, context: StageContext) -> StageRows:
    """Start the ranks, pass on what they log, and wait for all of them."""
    folder = context.checkpoints / "ranks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = Job(
        stage=stage.name,
        config=plain(context.config),
        inputs={name: str(path.absolute()) for name, path in context.inputs.items()},
        output=str(context.output.absolute()),
        checkpoints=str(context.checkpoints.absolute()),
        making=context.making,
        show_progress=context.show_progress,
    )
    (folder / JOB).write_text(json.dumps(asdict(job)))
    machines = 1
    if context.config.engine == "ray":
        size = context.config.ray.ranks
        with passing_on(folder / LOGGED, context.run):
            failures = start_on_ray(folder)
    else:
        launch = launch_of(stage, folder, context.config)
        machines, size = launch.machines, launch.machines * launch.processes
        with passing_on(folder / LOGGED, context.run):
            failures = start(launch)
    if failures:
        raise explained(stage.name, folder, size, failures, machines)
    return StageRows(**json.loads((folder / ROWS).read_text()))


def launch_of(stage: Stage, folder: Path, config: RunConfig) -> Launch:
    """Describe the ranks that torch's launcher starts on all machines."""
    return Launch(
        stage=stage.name,
        folder=str(folder.absolute()),
        processes=num_ranks(config),
        machines=config.torchrun.machines,
        address=config.torchrun.address,
        wait_seconds=config.torchrun.wait_seconds,
    )


@contextmanager
def passing_on(path: Path, run: RunLog) -> Iterator[None]:
    """Log what the first rank logs, while it runs."""
    done = threading.Event()

    def look() -> None:
        place, last = 0, False
        while not last:
            # Once more after the end.
            last = done.wait(SECONDS_BETWEEN_LOOKS)
            place = passed_on(path, place, run)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def passed_on(path: Path, place: int, run: RunLog) -> int:
    """Log the whole lines from a place of a file on; return where they end."""
    if not path.exists():
        return place
    with path.open("rb") as file:
        file.seek(place)
        whole = file.read().rpartition(b"\n")[0]
    for line in whole.splitlines():
        kind, arguments = json.loads(line)
        if kind == "log":
            step, values = arguments
            run.log(step, **values)
        else:
            getattr(run, kind)(arguments)
    return place + len(whole) + bool(whole)


def explained(
    stage: str,
    folder: Path,
    size: int,
    failures: Mapping[int, Failure],
    machines: int = 1,
) -> Exception:
    """Say in one error what became of the ranks."""
    # The launcher ends the others by SIGTERM; a library that gives up waiting aborts.
    ended = (-signal.SIGTERM, -signal.SIGABRT)
    for rank, (code, process, host) in sorted(failures.items()):
        if code < 0 and code not in ended:
            name = signal.Signals(-code).name
            hint = (
                " (the system does that when memory runs short)" if -code == signal.SIGKILL else ""
            )
            where = f"rank {rank} of {size} (process {process} on {host})"
            return RankLostError(
                f"{where} was killed by {name}{hint} in stage {stage}: {steps_of(folder, size)}. "
                f"{GOES_ON}{log_of(folder, rank)}"
            )
    errors = sorted(errors_of(folder, size), key=lambda one: float(one["time"]))
    for error in errors:
        if error["kind"] in RAISED:
            return RAISED[error["kind"]](error["message"])
    words = " ".join(str(one["message"]) for one in errors).lower()
    aborted = any(code == -signal.SIGABRT for code, *_ in failures.values())
    if aborted or any(word in words for word in TIMEOUT_WORDS):
        return RankLostError(
            f"the ranks of stage {stage} waited for each other longer than "
            f"torchrun.wait_seconds: {steps_of(folder, size)}. The one that is behind is slow or "
            f"hangs: look at its machine, or set torchrun.wait_seconds higher. {GOES_ON}"
        )
    rank = int(errors[0]["rank"]) if errors else min(failures, default=0)
    code = failures[rank].code if rank in failures else 1
    what = errors[0]["message"] if errors else f"ended with exit code {code}"
    # A rank that is killed on another machine is seen here as a connection that closed.
    also = "" if machines == 1 else f"; {steps_of(folder, size)}; see torchrun on the others"
    return RankLostError(
        f"rank {rank} of {size} failed in stage {stage}: {what}{also}. {GOES_ON}"
        f"{log_of(folder, rank)}"
    )


def steps_of(folder: Path, size: int) -> str:
    """Say how far each rank's latest training was when it was last heard of."""
    found = []
    for rank in range(size):
        path = folder / STEP.format(rank)
        found.append(
            f"rank {rank} {path.read_text() if path.exists() else 'before its first step'}"
        )
    return "; ".join(found)


def errors_of(folder: Path, size: int) -> list[dict[str, Any]]:
    """Read what the ranks wrote of their errors."""
    paths = [folder / ERROR.format(rank) for rank in range(size)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def log_of(folder: Path, rank: int) -> str:
    """Name the log of a rank; the first one's is the terminal."""
    path = folder / LOG.format(rank)
    return f". Its log: {path}" if path.exists() else ""
