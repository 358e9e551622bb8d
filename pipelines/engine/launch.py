"""Run a training stage on several processes (ranks), started by torch's elastic launcher.

Every rank does the whole stage, on the same events and with the same seeds, and in its trainings
works on its part of each batch (``recsys/training/distributed``). What the first rank writes is the
artefact. So no stage knows how many ranks there are.

A folder of the launch next to the stage's checkpoints holds the job (``job.json``), each rank's
error, the logs of all ranks but the first, and the lines for tracking. A rank that is stopped, or
stuck in a driver, would hold the others in an exchange until ``torchrun.wait_seconds``, so each
touches a file there and looks at those of the others.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pipelines.engine.artifacts import RunLog, plain
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.stage import Stage, StageContext, StageRows
from pipelines.engine.torchrun import LOG, Failure, num_ranks, start

JOB, ROWS, LOGGED = "job.json", "rows.json", "logged.jsonl"
ALIVE, ERROR, SILENT = "alive-{}", "error-{}.json", "silent"
BEAT_SECONDS, SILENT_SECONDS = 3.0, 25.0
"""Between two signs of life of a rank, and without one until the others end."""
RAISED: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "MemoryError": MemoryError,
    "OSError": OSError,
    "UnstableTrainingError": UnstableTrainingError,
}
"""Errors of a rank that the launching process raises as they are."""


def run_stage(stage: Stage, context: StageContext) -> StageRows:
    """Run a stage's function, here or on several ranks as the configuration says."""
    config = context.config
    if config.engine != "torchrun" or not stage.on_ranks(config):
        return stage.function(context)
    return on_ranks(stage, context, config.torchrun.machines * num_ranks(config))


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
    failures = start(stage.name, folder, config)
    pass_on(folder / LOGGED, context.run)
    if failures:
        raise explain(stage.name, folder, size, failures)
    return StageRows(**json.loads((folder / ROWS).read_text()))


def pass_on(path: Path, run: RunLog) -> None:
    """Log what the first rank logged, up to a line that a kill cut off."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.rpartition("\n")[0].splitlines():
        kind, arguments = json.loads(line)
        if kind == "log":
            step, values = arguments
            run.log(step, **values)
        else:
            getattr(run, kind)(arguments)


def explain(stage: str, folder: Path, size: int, failures: Mapping[int, Failure]) -> Exception:
    """Return the error of a rank, else one that names a rank that ended and how.

    Args:
        failures: Ranks that failed first.
    """
    errors = [json.loads(path.read_text()) for path in folder.glob(ERROR.format("*"))]
    # A silent rank comes first; another rank then killed it.
    errors.sort(key=lambda one: (one["kind"] != SILENT, float(one["time"])))
    for error in errors:
        if error["kind"] in RAISED:
            return RAISED[error["kind"]](error["message"])
    # The launcher ends the others by SIGTERM; a library that gives up waiting aborts.
    ended = (-signal.SIGTERM, -signal.SIGABRT)
    killed = [rank for rank, one in failures.items() if one.code < 0 and one.code not in ended]
    if killed and not (errors and errors[0]["kind"] == SILENT):
        rank = min(killed)
        what = f"was killed by {signal.Signals(-failures[rank].code).name}"
        what += f" on {failures[rank].host}"
    elif errors:
        rank, what = int(errors[0]["rank"]), f"failed: {errors[0]['message']}"
    else:
        rank = min(failures)
        what = f"ended with exit code {failures[rank].code}"
    log = folder / LOG.format(rank)
    return RankLostError(
        f"stage {stage}: rank {rank} of {size} {what}. If it waited for a slow rank, set "
        "torchrun.wait_seconds higher. Run the same command again: it resumes from the newest "
        "checkpoint" + (f". Its log: {log}" if log.exists() else "")
    )


@contextmanager
def heartbeat(
    folder: Path, rank: int, beat: float = BEAT_SECONDS, silent: float = SILENT_SECONDS
) -> Iterator[None]:
    """Show for the time of a block that this rank lives; end the process if another is silent."""
    own, ended = folder / ALIVE.format(rank), threading.Event()

    def watch() -> None:
        before: set[str] = set()
        while not ended.wait(beat):
            with suppress(OSError):
                own.touch()
                # By the clock of the folder's file system. A rank that is done has no file.
                oldest, files = own.stat().st_mtime - silent, folder.glob(ALIVE.format("*"))
                found = {one.name for one in files if one.stat().st_mtime < oldest}
                # Twice: after a pause of the whole machine some wake before others.
                if both := found & before:
                    give_up(folder, int(min(both).rpartition("-")[2]), silent)
                before = found

    own.write_text(f"{platform.node()} {os.getpid()}")
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        own.unlink(missing_ok=True)


def give_up(folder: Path, rank: int, silent: float) -> None:
    """Write the error of a silent rank, and end it, if it is on this machine, and this process."""
    words = f"it has not answered for {silent:g} s; look for a stopped process or a faulty GPU"
    error = {"rank": rank, "time": time.time(), "kind": SILENT, "message": words}
    (folder / ERROR.format(rank)).write_text(json.dumps(error))
    with suppress(OSError, ValueError):
        node, process = (folder / ALIVE.format(rank)).read_text().split()
        if node == platform.node():  # SIGTERM, the launcher's, does not end a stopped process
            os.kill(int(process), signal.SIGKILL)
    os._exit(1)
