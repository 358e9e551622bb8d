"""Read raw files in a process of their own: if bytes crash the reader, the next file is still read.

Polars answers most corrupt files with an error, and ends its process on a few: a panic while it
unwinds, or a size out of a damaged header that no memory holds. The process is started once for
all partitions and again after its death. Nothing but ``features`` is imported here, so that it
starts in a third of a second.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from features.parallel import end_with_the_parent
from features.partition import PartitionReport, changed_columns, clean_partition, read_columns
from features.reading.scan import NoColumnError
from features.schema import FilterConfig, SourceConfig

READY = "ready"
START = "from features.partition_process import main; main()"
"""By its name, so that replies are of the classes that the other end knows."""
OUT_OF_MEMORY_SCORE = "500"
"""The kernel takes this process before the one that waits for it."""
NO_ROOM_TO_MAP = "Cannot allocate memory"


class ReadingFailedError(Exception):
    """The process that reads has ended, or ran out of memory."""


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """Files to read, and an empty folder for the clean rows."""

    source: SourceConfig
    filters: FilterConfig
    out: Path
    now: datetime
    end: datetime | None
    """End of the partition; None if times are not checked against it."""
    before: Mapping[str, str] | None
    """Columns of the partition before; None accepts any."""


@dataclass(frozen=True, kw_only=True)
class ReadReply:
    """One of three: a report, a change of columns, or a reason why the files cannot be used."""

    report: PartitionReport | None = None
    changes: str = ""
    refused: str = ""


class PartitionReader:
    """Reads partitions, one at a time, in a process that may die of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._is_ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()
        self._errors.close()

    def start(self) -> None:
        """Start the process if none runs; the caller can do something else until it is ready."""
        if self._process is not None:
            return
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=self._errors,
            stderr=self._errors,
        )
        theirs.close()

    def read(self, request: ReadRequest) -> ReadReply:
        """Check and clean a partition's files."""
        self.start()
        process, connection = self._process, self._connection
        assert process is not None
        assert connection is not None
        try:
            try:
                if not self._is_ready:
                    connection.recv()
                    self._is_ready = True
                with suppress(BrokenPipeError):
                    connection.send(request)
                reply = connection.recv()
            except (EOFError, ConnectionResetError):
                code = process.wait()
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                how = f"reading it ended the process that reads ({name}: {self._last_line()})"
                raise (ReadingFailedError if self._is_ready else RuntimeError)(how) from None
            if isinstance(reply, MemoryError):
                raise ReadingFailedError(f"reading it took too much memory ({reply})")
            if isinstance(reply, Exception):
                raise reply
            assert isinstance(reply, ReadReply)
            return reply
        except BaseException:
            # It must not write on into a folder that the caller removes.
            self._end()
            raise

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def _end(self) -> None:
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
        self._process, self._connection, self._is_ready = None, None, False


def read_partition(request: ReadRequest) -> ReadReply:
    """Compare the columns before any row is read, then clean the rows."""
    if changes := _schema_changes(request):
        return ReadReply(changes=changes)
    try:
        report = clean_partition(
            request.source, request.filters, request.out, now=request.now, end=request.end
        )
    except ValueError as error:
        if NO_ROOM_TO_MAP in str(error):
            raise MemoryError(str(error)) from error
        return ReadReply(refused=str(error))
    return ReadReply(report=report)


def _schema_changes(request: ReadRequest) -> str:
    for path in request.source.paths if request.before is not None else ():
        try:
            now = read_columns(path, request.source)
        except NoColumnError as error:
            return str(error)
        except ValueError:
            # A fault of the file itself is reported when it is read.
            return ""
        assert request.before is not None
        if changes := changed_columns(request.before, now):
            return "; ".join(changes)
    return ""


def main() -> None:
    """Answer requests until the other end of the connection is closed."""
    end_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_SCORE)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    connection.send(READY)
    while True:
        try:
            try:
                request = connection.recv()
            except EOFError:
                return
            connection.send(read_partition(request))
        except (OSError, MemoryError) as error:
            connection.send(error)
        except Exception:
            connection.send(RuntimeError(f"reading a partition failed:\n{traceback.format_exc()}"))
