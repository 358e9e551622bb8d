"""Make lists for many users: one job at a time in a folder, in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.engine.errors import ClusterError, WorkspaceBusyError
from pipelines.engine.workspace import check_writable
from pipelines.scoring.job import ScoreRequest
from recsys.data.durable import locked

ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
LOCK = ".lock"
START = "from pipelines.scoring.process import main; main()"
ERRORS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "OSError": OSError,
    "ClusterError": ClusterError,
}


def score(
    request: ScoreRequest,
    report: Callable[[Mapping[str, Any]], object] = lambda _: None,
    *,
    keys: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Make the lists of a job that are missing; return numbers of the job and of this run.

    ``report`` gets ``lists_in_all``, then ``lists`` made since the last message, each ``part``, and
    a part that was ``lost`` with its worker.
    """
    out = Path(request.out)
    check_writable(out, "the folder of lists", "--out")
    with locked(out / LOCK, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(
                f"{out.absolute()} is being written by another recsys score; wait for it, or name "
                "another folder with --out"
            )
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            if keys is not None:
                json.dump(list(keys), file)
                file.flush()
                request = replace(request, keys_file=file.name)
            outcome = _in_process(request, report)
    if not outcome["complete"]:
        raise ValueError(
            f"{outcome['num_failed']} of {outcome['num_failed'] + outcome['num_lists']} lists "
            f"failed, more than --max-failed-share {request.max_failed_share:g} allows; "
            f"{out / 'failed'} names them. Mend the cause and run the same command again"
        )
    return outcome


def _in_process(
    request: ScoreRequest, report: Callable[[Mapping[str, Any]], object]
) -> dict[str, Any]:
    source, target = os.pipe()
    with os.fdopen(source) as lines:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(target)],
            pass_fds=[target],
            stdin=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            text=True,
        )
        os.close(target)
        message: dict[str, Any] = {}
        with process:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(asdict(request)))
                process.stdin.close()
                for line in lines:
                    message = json.loads(line)
                    report(message)
            except BaseException:
                process.kill()
                raise
    if "outcome" in message:
        found: dict[str, Any] = message["outcome"]
        return found
    if "error" in message:
        raise ERRORS[message["error"]](message["message"])
    raise RuntimeError(
        f"the process that loads the bundle ended with code {process.returncode}; see above"
    )
