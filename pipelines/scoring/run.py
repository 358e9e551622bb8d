"""Make lists for many users: one job at a time in a folder, in processes of its own.

The process that loads the bundle and forks is a fresh one, whatever this one has imported or run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.engine.errors import ClusterError, WorkspaceBusyError
from pipelines.engine.workspace import check_writable
from pipelines.scoring.request import ScoreRequest
from recsys.data.durable import locked
from serving.server.zygote import receive_message, send_message

ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
LOCK = ".lock"


def score(
    request: ScoreRequest,
    report: Callable[[Mapping[str, Any]], object] = lambda _: None,
    *,
    keys: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Make the lists of a job that are missing."""
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
            outcome = _in_processes(request, report)
    if not outcome["complete"]:
        raise ValueError(
            f"{outcome['num_failed']} of {outcome['num_failed'] + outcome['num_lists']} lists "
            f"failed, more than --max-failed-share {request.max_failed_share:g} allows; "
            f"{out / 'failed'} names them. Mend the cause and run the same command again"
        )
    return outcome


def _in_processes(
    request: ScoreRequest, report: Callable[[Mapping[str, Any]], object]
) -> dict[str, Any]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            command = [sys.executable, "-m", "pipelines.scoring.process", str(theirs.fileno())]
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, **ONE_THREAD}
            )
        send_message(ours, asdict(request))
        outcome: Mapping[str, Any] = {}
        try:
            while (received := receive_message(ours)) is not None:
                outcome = received[0]
                report(outcome)
        finally:
            # It ends, and its workers do, when nobody listens any more.
            ours.close()
            process.wait()
    if "outcome" in outcome:
        found: dict[str, Any] = outcome["outcome"]
        return found
    if "refused" in outcome:
        raise ValueError(outcome["refused"])
    if "disk" in outcome:
        raise OSError(outcome["disk"])
    if "cluster" in outcome:
        raise ClusterError(outcome["cluster"])
    raise RuntimeError(
        f"the process that loads the bundle ended with code {process.returncode}; see above"
    )
