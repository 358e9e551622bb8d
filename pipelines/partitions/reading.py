"""Read raw files in a process of their own: whatever bytes do to the reader, the next file is read.

Polars answers most corrupt files with an error, and ends its process on a few: a panic while it
unwinds, or a size out of a damaged header that no memory holds. The process is started once for
all partitions and anew after its death. A request and its reply are one line of JSON each; rows go
to disk. Nothing but ``features`` is imported here, so that it starts in a third of a second.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from features.partition import PartitionReport, changed_columns, clean_partition, columns_of
from features.scan import NoColumnError
from features.schema import FilterConfig, SourceConfig

READY = "ready"
OUT_OF_MEMORY_SCORE = "500"
"""The kernel takes this process before the one that waits for it."""
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What the kernel, for want of memory, or a person ends a process with."""
NO_MEMORY = re.compile(r"memory allocation of (\d+) bytes")
NO_ROOM_TO_MAP = "Cannot allocate memory"
LARGEST_MEMORY = 1 << 46
"""Bytes that no machine has: a size that is larger comes from a damaged header."""


class ReadingFailedError(Exception):
    """The process that reads has ended, or ran out of memory; says how."""

    def __init__(self, how: str, *, may_pass: bool) -> None:
        super().__init__(how)
        self.may_pass = may_pass
        """Whether the same files may be read another time, as after too little memory."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be read, and where the clean rows go."""

    source: SourceConfig
    filters: FilterConfig
    out: Path
    """An empty folder."""
    now: datetime
    end: datetime | None
    """Of the partition; None where times are not held against it."""
    before: Mapping[str, str] | None
    """Columns of the partition before; None accepts any."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of it: one of the three."""

    report: PartitionReport | None = None
    changes: str = ""
    """How the columns differ; no row was read."""
    refused: str = ""
    """Why the files cannot be used."""


class Reader:
    """Reads partitions, one at a time, in a process that may die of them.

    A context manager: the process starts with the first request and ends with the block.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self._end()
        self._errors.close()

    def start(self) -> None:
        """Start the process if none runs; it gets ready while something else is done."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.partitions.reading"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )

    def read(self, request: Request) -> Reply:
        """Check and clean a partition's files."""
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not self._is_ready and process.stdout.readline().strip() != READY:
                raise RuntimeError(f"no process reads partitions: {self._last_words()}")
            self._is_ready = True
            # A panic that was answered says nothing of a later death.
            self._errors.seek(0)
            self._errors.truncate()
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(_as_json(request)) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line.endswith("\n"):
                raise self._death(process.wait())
            return _reply(json.loads(line))
        except BaseException:
            # It must not go on writing into a folder that the caller removes.
            self._end()
            raise

    def _death(self, code: int) -> ReadingFailedError:
        said = self._last_words()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        how = f"reading it ended the process that reads ({name}{f': {said}' if said else ''})"
        wanted = NO_MEMORY.search(said)
        is_scarce = wanted is not None and int(wanted[1]) < LARGEST_MEMORY
        return ReadingFailedError(how, may_pass=-code in FROM_OUTSIDE or is_scarce)

    def _last_words(self) -> str:
        """Find the reason in what the process printed: before or above a trace of the stack."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        for line, below in reversed([*zip(lines, [*lines[1:], ""], strict=False)]):
            if NO_MEMORY.search(line):
                return line
            if " panicked at " in line:
                return below
        return lines[-1] if lines else ""

    def _end(self) -> None:
        if (process := self._process) is None:
            return
        self._process, self._is_ready = None, False
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def _as_json(request: Request) -> dict[str, Any]:
    return {
        "source": {**asdict(request.source), "paths": [str(one) for one in request.source.paths]},
        "filters": asdict(request.filters),
        "out": str(request.out),
        "now": request.now.isoformat(),
        "end": None if request.end is None else request.end.isoformat(),
        "before": None if request.before is None else dict(request.before),
    }


def _request(document: Mapping[str, Any]) -> Request:
    source, filters = document["source"], document["filters"]
    end = document["end"]
    lists = {name: tuple(one) for name, one in filters.items() if isinstance(one, list)}
    return Request(
        source=SourceConfig(**{**source, "paths": tuple(Path(one) for one in source["paths"])}),
        filters=FilterConfig(**{**filters, **lists}),
        out=Path(document["out"]),
        now=datetime.fromisoformat(document["now"]),
        end=None if end is None else datetime.fromisoformat(end),
        before=document["before"],
    )


def _reply(document: Mapping[str, Any]) -> Reply:
    if (failed := document.get("failed")) is not None:
        raise RuntimeError(f"reading a partition failed:\n{failed}")
    if (disk := document.get("disk")) is not None:
        raise OSError(*disk)
    if (memory := document.get("no_memory")) is not None:
        raise ReadingFailedError(f"reading it took too much memory ({memory})", may_pass=True)
    if (report := document.get("report")) is None:
        return Reply(changes=document.get("changes", ""), refused=document.get("refused", ""))
    counted = Counter(report["quarantined"])
    return Reply(report=PartitionReport(**{**report, "quarantined": counted}))


def read_partition(request: Request) -> Reply:
    """Compare the columns before any row is read, then clean the rows."""
    if changes := _schema_changes(request):
        return Reply(changes=changes)
    try:
        report = clean_partition(
            request.source, request.filters, request.out, now=request.now, end=request.end
        )
    except ValueError as error:
        if NO_ROOM_TO_MAP in str(error):
            raise MemoryError(str(error)) from error
        return Reply(refused=str(error))
    return Reply(report=report)


def _schema_changes(request: Request) -> str:
    for path in request.source.paths if request.before is not None else ():
        try:
            now = columns_of(path, request.source)
        except NoColumnError as error:
            return str(error)
        except ValueError:
            # What is wrong with the file itself is said when it is read.
            return ""
        assert request.before is not None
        if changes := changed_columns(request.before, now):
            return "; ".join(changes)
    return ""


def _answer(line: str) -> dict[str, Any]:
    try:
        reply = read_partition(_request(json.loads(line)))
    except OSError as error:
        known = error.errno is not None
        return {"disk": [error.errno, error.strerror, error.filename] if known else [str(error)]}
    except MemoryError as error:
        return {"no_memory": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}
    if reply.report is None:
        return {"changes": reply.changes, "refused": reply.refused}
    return {"report": vars(reply.report)}


def main() -> None:
    """Answer requests from standard input until nobody sends any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_SCORE)
    # What a library prints is no reply.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    def receive() -> None:
        for line in sys.stdin:
            requests.put(line)
        # The parent has ended, or was killed: its successor may work in the same folder.
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    replies.write(READY + "\n")
    replies.flush()
    while True:
        replies.write(json.dumps(_answer(requests.get())) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
