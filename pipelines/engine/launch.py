"""Run a training stage on several processes (ranks), started by torch's elastic launcher or by Ray.

Every rank does the whole stage, on the same events and with the same seeds, and in its trainings
works on its part of each batch (``recsys/training/distributed``). What the first rank writes is the
artefact. So no stage knows how many ranks there are.

A folder of the launch next to the stage's checkpoints holds the job (``job.json``), each rank's
latest step and error, the logs of all ranks but the first, and the lines for tracking.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import plain
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.ray_ranks import LOG, start_on_ray
from pipelines.engine.run_log import RunLog
from pipelines.engine.stage import Stage, StageContext, StageRows
from pipelines.engine.torchrun import Failure, num_ranks, start

ON_RAY = ("build_features", "embed_items")
"""Stages that hand tasks to a Ray cluster."""
JOB, ROWS, LOGGED = "job.json", "rows.json", "logged.jsonl"
STEP, ERROR = "step-{}", "error-{}.json"
SECONDS_BETWEEN_LOOKS = 1.0
TIMEOUT_WORDS = ("timed out", "timeout")
RESUMES = "Run the same command again: it resumes from the newest checkpoint"
RAISED: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "MemoryError": MemoryError,
    "OSError": OSError,
    "UnstableTrainingError": UnstableTrainingError,
}
"""Errors of a rank that the launching process raises as they are."""


def count_ranks(stage: Stage, config: RunConfig) -> int:
    """Count the ranks that a stage works on; 0 for this process alone."""
    if not stage.on_ranks(config):
        return 0
    if config.engine == "ray":
        return config.ray.ranks if config.ray.ranks > 1 else 0
    return config.torchrun.machines * num_ranks(config) if config.engine == "torchrun" else 0


def run_stage(stage: Stage, context: StageContext) -> StageRows:
    """Run a stage's function, here or on several ranks as the configuration says."""
    size = count_ranks(stage, context.config)
    return on_ranks(stage, context, size) if size else stage.function(context)


def describe_engine(stage: Stage, config: RunConfig) -> dict[str, Any]:
    """Describe for run.json where a stage worked."""
    ranks = count_ranks(stage, config)
    on_ray = config.engine == "ray" and (ranks or stage.name in ON_RAY)
    found: dict[str, Any] = {"engine": config.engine if ranks or on_ray else "local"}
    if ranks:
        found["ranks"] = ranks
        if not on_ray and config.torchrun.machines > 1:
            found["machines"] = config.torchrun.machines
    return found


def on_ranks(stage: Stage, context: StageContext, size: int) -> StageRows:
    """Start the ranks, pass on what they log, and wait for all of them."""
    config, folder = context.config, context.checkpoints / "ranks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = {
        "stage": stage.name,
        "config": plain(config),
        "inputs": {name: str(path.absolute()) for name, path in context.inputs.items()},
        "output": str(context.output.absolute()),
        "checkpoints": str(context.checkpoints.absolute()),
        "making": context.making,
        "show_progress": context.show_progress,
    }
    (folder / JOB).write_text(json.dumps(job))
    with passing_on(folder / LOGGED, context.run):
        on_ray = config.engine == "ray"
        failures = start_on_ray(folder, config) if on_ray else start(stage.name, folder, config)
    if failures:
        machines = 1 if on_ray else config.torchrun.machines
        raise explained(stage.name, folder, size, failures, machines)
    return StageRows(**json.loads((folder / ROWS).read_text()))


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
    stage: str, folder: Path, size: int, failures: Mapping[int, Failure], machines: int = 1
) -> Exception:
    """Explain in one error how the ranks ended; ``failures`` are those that failed first."""
    steps = describe_steps(folder, size)
    # The launcher ends the others by SIGTERM; a library that gives up waiting aborts.
    ended = (-signal.SIGTERM, -signal.SIGABRT)
    for rank, (code, process, host) in sorted(failures.items()):
        if code < 0 and code not in ended:
            name, is_kill = signal.Signals(-code).name, -code == signal.SIGKILL
            hint = " (the system does that when memory runs short)" if is_kill else ""
            return RankLostError(
                f"rank {rank} of {size} (process {process} on {host}) was killed by {name}{hint} "
                f"in stage {stage}: {steps}. {RESUMES}{locate_log(folder, rank)}"
            )
    paths = (folder / ERROR.format(rank) for rank in range(size))
    errors = [json.loads(path.read_text()) for path in paths if path.exists()]
    errors.sort(key=lambda one: float(one["time"]))
    for error in errors:
        if error["kind"] in RAISED:
            return RAISED[error["kind"]](error["message"])
    words = " ".join(str(one["message"]) for one in errors).lower()
    aborted = any(code == -signal.SIGABRT for code, *_ in failures.values())
    if aborted or any(word in words for word in TIMEOUT_WORDS):
        return RankLostError(
            f"the ranks of stage {stage} waited for each other longer than "
            f"torchrun.wait_seconds: {steps}. The one that is behind is "
            f"slow or hangs: look at its machine, or set torchrun.wait_seconds higher. {RESUMES}"
        )
    rank = int(errors[0]["rank"]) if errors else min(failures, default=0)
    code = failures[rank].code if rank in failures else 1
    what = errors[0]["message"] if errors else f"ended with exit code {code}"
    # A rank that is killed on another machine is seen here as a connection that closed.
    also = "" if machines == 1 else f"; {steps}; see torchrun on the others"
    return RankLostError(
        f"rank {rank} of {size} failed in stage {stage}: {what}{also}. {RESUMES}"
        f"{locate_log(folder, rank)}"
    )


def describe_steps(folder: Path, size: int) -> str:
    """Describe how far each rank's latest training was when it was last heard of."""
    paths = [folder / STEP.format(rank) for rank in range(size)]
    steps = [path.read_text() if path.exists() else "before its first step" for path in paths]
    return "; ".join(f"rank {rank} {step}" for rank, step in enumerate(steps))


def locate_log(folder: Path, rank: int) -> str:
    """Return the place of a rank's log in words; the first one's is the terminal."""
    path = folder / LOG.format(rank)
    return f". Its log: {path}" if path.exists() else ""
