"""Run a training stage on several processes (ranks), started by torch's elastic launcher.

Every rank does the whole stage, on the same events and with the same seeds, and in its trainings
works on its part of each batch (``recsys/training/distributed``). What the first rank writes is the
artefact. So no stage knows how many ranks there are.

Beside the stage's checkpoints lies a folder of the launch: what is run (``job.json``), each rank's
latest step and error, the logs of all ranks but the first, and what is logged for tracking.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.config.toml import plain
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.run_log import RunLog
from pipelines.engine.stage import Stage, StageContext, StageRows

ON_RAY = ("build_features", "embed_items")
"""Stages that hand tasks to a Ray cluster."""
WORK = "pipelines.cli.rank"
"""Module that is one rank; above this room, because it knows all stages."""
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


def trains_on_cpu(config: RunConfig) -> bool:
    """Say whether the settings keep every training off GPUs."""
    trainings = (
        config.training,
        config.sequence_training,
        config.generative_training,
        config.ranker_training,
    )
    return all(one.device == "cpu" for one in trainings)


def num_ranks(config: RunConfig) -> int:
    """Count the ranks of a run's training stages."""
    import torch

    gpus = 0 if trains_on_cpu(config) else torch.cuda.device_count()
    return config.torchrun.processes or gpus or 2


def called(stage: Stage, context: StageContext) -> StageRows:
    """Run a stage's function, here or on several ranks as the configuration says.

    Raises:
        RankLostError: A rank ended or fell behind; says which, and where its log is.
    """
    config = context.config
    if not stage.on_ranks(config) or config.engine != "torchrun":
        return stage.function(context)
    return on_ranks(stage, context, num_ranks(config))


def engine_of(stage: Stage, config: RunConfig) -> dict[str, Any]:
    """Say for run.json where a stage worked."""
    if config.engine == "ray" and stage.name in ON_RAY:
        return {"engine": "ray"}
    if not stage.on_ranks(config) or config.engine != "torchrun":
        return {"engine": "local"}
    return {"engine": config.engine, "ranks": num_ranks(config)}


def on_ranks(stage: Stage, context: StageContext, size: int) -> StageRows:
    """Start the ranks, pass on what they log, and wait for all of them."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

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
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id=context.making[:16],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
    )
    with passing_on(folder / LOGGED, context.run), quiet_launcher():
        try:
            elastic_launch(launch, sys.executable)("-m", WORK, str(folder))
        except ChildFailedError as error:
            failures = {
                rank: (failure.exitcode, failure.pid) for rank, failure in error.failures.items()
            }
            raise explained(stage.name, folder, size, failures) from None
    return StageRows(**json.loads((folder / ROWS).read_text()))


@contextmanager
def quiet_launcher() -> Iterator[None]:
    """Leave out the launcher's own log: what went wrong is said in one sentence."""
    loggers = [
        logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.distributed")
    ]
    levels = [one.level for one in loggers]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    if sys.platform == "linux":
        # Ranks of one machine need no network.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "SignalException":
            number = int(getattr(error, "sigval", signal.SIGTERM))
            if number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + number) from None
        raise
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


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
        elif kind == "artifact":
            run.artifact(Path(arguments[0]), arguments[1])
        else:
            getattr(run, kind)(arguments)
    return place + len(whole) + bool(whole)


def explained(
    stage: str, folder: Path, size: int, failures: Mapping[int, tuple[int, int]]
) -> Exception:
    """Say in one error what became of the ranks.

    Args:
        stage: Name of the stage.
        folder: Of the launch.
        size: Number of ranks.
        failures: Exit code (less than 0: a signal) and process of the ranks that failed first.
    """
    # The launcher ends the others by SIGTERM; a library that gives up waiting aborts.
    ended = (-signal.SIGTERM, -signal.SIGABRT)
    for rank, (code, process) in sorted(failures.items()):
        if code < 0 and code not in ended:
            name = signal.Signals(-code).name
            hint = (
                " (the system does that when memory runs short)" if -code == signal.SIGKILL else ""
            )
            where = f"rank {rank} of {size} (process {process} on {platform.node()})"
            return RankLostError(
                f"{where} was killed by {name}{hint} in stage {stage}: {steps_of(folder, size)}. "
                f"{GOES_ON}{log_of(folder, rank)}"
            )
    errors = sorted(errors_of(folder, size), key=lambda one: float(one["time"]))
    for error in errors:
        if error["kind"] in RAISED:
            return RAISED[error["kind"]](error["message"])
    words = " ".join(str(one["message"]) for one in errors).lower()
    aborted = any(code == -signal.SIGABRT for code, _ in failures.values())
    if aborted or any(word in words for word in TIMEOUT_WORDS):
        return RankLostError(
            f"the ranks of stage {stage} waited for each other longer than "
            f"torchrun.wait_seconds: {steps_of(folder, size)}. The one that is behind is slow or "
            f"hangs: look at its machine, or set torchrun.wait_seconds higher. {GOES_ON}"
        )
    rank = int(errors[0]["rank"]) if errors else min(failures, default=0)
    code = failures.get(rank, (1, 0))[0]
    what = errors[0]["message"] if errors else f"ended with exit code {code}"
    return RankLostError(
        f"rank {rank} of {size} failed in stage {stage}: {what}. {GOES_ON}{log_of(folder, rank)}"
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
