"""History of a workspace's scheduled commands: one line a command, and none is lost.

<workspace>/
    history.jsonl                one JSON line a command, appended when it ends
    running/<command>-<process>  locked while a command runs; says when it began

A command that is killed writes no line. It leaves its file in ``running``, whose lock the kernel
released, and the next command writes the line for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipelines.engine.console import find_exit_code, format_error, log
from recsys.data.durable import append_line, locked

HISTORY = "history.jsonl"
RUNNING = "running"
KILLED = 137
"""Exit code of a command that wrote no line itself: 128 + SIGKILL, as a shell counts."""
KILLED_REASON = "it was killed, or the machine went down: it wrote no line when it ended"
Outcome = Literal["done", "nothing to do", "refused", "failed", "busy"]
OUTCOMES: dict[int, Outcome] = {0: "done", 3: "refused", 5: "done", 75: "busy"}
"""By exit code; every other one has failed. An alarm (5) is what a check is there to find."""


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """One run of a command."""

    time: str
    """When it began: ISO 8601, UTC."""
    command: str
    seconds: float
    exit_code: int
    outcome: Outcome
    reasons: list[str] = field(default_factory=list)
    """In plain words."""
    details: dict[str, Any] = field(default_factory=dict)


class Recording:
    """The line of a running command, with its ``reasons``, ``details`` and ``outcome``."""

    def __init__(self, command: str) -> None:
        self.workspace: Path | None = None
        self.outcome: Outcome | None = None
        """By the exit code, unless the command sets it."""
        self.reasons: list[str] = []
        """In plain words."""
        self.details: dict[str, Any] = {}
        """Values that JSON has."""
        self._command = command
        self._began, self._begin = datetime.now(UTC), time.perf_counter()
        self._mark = ExitStack()

    def at(self, workspace: Path) -> None:
        """Record in a workspace; one that is not there yet gets its line at the end only."""
        self.workspace = workspace
        if workspace.is_dir():
            with suppress(OSError):
                _note_killed(workspace)
            with suppress(OSError):
                self._mark.enter_context(_marked(workspace, self._run(KILLED)))

    def _run(self, exit_code: int) -> CommandRun:
        return CommandRun(
            time=self._began.isoformat(timespec="seconds"),
            command=self._command,
            seconds=round(time.perf_counter() - self._begin, 3),
            exit_code=exit_code,
            outcome=self.outcome or OUTCOMES.get(exit_code, "failed"),
            reasons=[reason for reason in self.reasons if reason],
            details=self.details,
        )

    def end(self, exit_code: int, error: BaseException | None = None) -> None:
        """Append the line."""
        with self._mark:
            if self.workspace is None or not self.workspace.is_dir():
                return
            if error is not None and not hasattr(error, "exit_code"):
                self.reasons += [line.strip() for line in format_error(error).splitlines()]
            run = self._run(exit_code)
            try:
                append(self.workspace, run)
            except OSError as unwritten:
                if error is None:
                    raise
                log.print(f"note: not recorded in {HISTORY}: {unwritten}", markup=False)


@contextmanager
def recorded(workspace: Path | None, command: str) -> Iterator[Recording]:
    """Append a line to the history when the block ends, whichever way it ends.

    A command that ends before there is a workspace leaves no line. A line that cannot be written
    fails a command that went well; the error of one that failed stays what it was.
    """
    recording = Recording(command)
    if workspace is not None:
        recording.at(workspace)
    try:
        yield recording
    except BaseException as error:
        recording.end(find_exit_code(error), error)
        raise
    recording.end(0)


def append(workspace: Path, run: CommandRun) -> None:
    """Append a line, durably."""
    line = json.dumps(asdict(run), sort_keys=True, ensure_ascii=False, default=str)
    append_line(workspace / HISTORY, line)


def read_history(workspace: Path) -> list[CommandRun]:
    """Read the history, oldest first; a line that a kill cut off is left out."""
    path, found = workspace / HISTORY, []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError):
            found.append(CommandRun(**json.loads(line)))
    return found


@contextmanager
def _marked(workspace: Path, run: CommandRun) -> Iterator[None]:
    """Keep a locked file with the line to append if the process is killed."""
    path = workspace / RUNNING / f"{run.command}-{os.getpid()}-{time.time_ns()}"
    path.parent.mkdir(exist_ok=True)
    with locked(path, wait=False):
        path.write_text(json.dumps(asdict(run)), encoding="utf-8")
        yield
        path.unlink(missing_ok=True)


def _note_killed(workspace: Path) -> None:
    """Append the lines of commands that ended without writing one."""
    for path in sorted((workspace / RUNNING).glob("*")):
        with locked(path, wait=False) as ended:
            if not ended or not path.exists():
                continue
            # Empty: killed before it had begun, or unlinked and made again by this lock.
            with suppress(ValueError, TypeError):
                run = CommandRun(**json.loads(path.read_text(encoding="utf-8")))
                append(workspace, replace(run, outcome="failed", reasons=[KILLED_REASON]))
            path.unlink()


def read_result(path: Path | None) -> dict[str, Any]:
    """Read the newest result of a command; empty without one.

    Raises:
        ValueError: Names the file that cannot be read.
    """
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON ({error}); run its command again, or delete it"
        ) from None
    return found if isinstance(found, dict) else {}
