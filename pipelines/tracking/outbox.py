"""A file for each tracked run, so that a slow or absent server never blocks one.

<outbox>/
    <time>-<stage>-<key>.jsonl    one event a line, appended at once; removed once it is sent
    <time>-<stage>-<key>.refused  a file that the store will never accept; its last line says why
    aliases.json                  what each alias named when it was last set or obeyed here

``pipelines.tracking.store`` sends it; this module knows no server.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pipelines.engine.artifacts import Manifest
from pipelines.engine.run_log import RunLog
from recsys.data.durable import write_durably

ALIASES = "aliases.json"


def leaves(table: Mapping[str, Any], mark: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """List the values of nested tables with their keys, joined by ``mark``."""
    for name, value in table.items():
        key = f"{above}{mark}{name}" if above else name
        if isinstance(value, Mapping):
            yield from leaves(value, mark, key)
        else:
            yield key, value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file's complete lines, without one that a kill cut off; empty without a file."""
    lines, found = list[bytes](), []
    with suppress(FileNotFoundError):
        lines = path.read_bytes().splitlines(keepends=True)
    for line in lines:
        with suppress(ValueError):
            event = json.loads(line) if line.endswith(b"\n") else None
            if isinstance(event, dict):
                found.append(event)
    return found


class OutboxRun(RunLog):
    """Appends a run's events to one file; each is with the system before a call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A line that a kill cut off must not swallow the next one.
        self._before = "\n" if path.exists() else ""

    def append(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line = {"event": event, "time": time.time_ns() // 1_000_000, **fields}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self._before}{json.dumps(line, ensure_ascii=False, default=str)}\n")
        self._before = ""

    def log(self, step: int, **values: float) -> None:
        self.metrics(values, step)

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        # JSON has no NaN and no infinity.
        numbers = {
            name: float(one) if math.isfinite(one) else str(float(one))
            for name, one in values.items()
        }
        if numbers:
            self.append("metrics", step=step, values=numbers)

    def tags(self, values: Mapping[str, str]) -> None:
        self.append("tags", values=dict(values))

    def alias(self, model: str, name: str, version: str, *, action: str) -> None:
        """Point an alias at a registered bundle."""
        self.append("alias", model=model, alias=name, version=version, action=action)

    def end(self, status: Literal["FINISHED", "FAILED", "KILLED"]) -> None:
        """Close the run; nothing follows."""
        self.append("end", status=status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.end("FINISHED")
            return
        self.tags({"error": f"{type(error).__name__}: {error}"[:4000]})
        self.end("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")


@dataclass(frozen=True)
class Outbox:
    """The folder; a stage's runs are written by the holder of its lock, or of the workspace's."""

    path: Path

    def waiting(self) -> list[Path]:
        """List the runs that the store does not have, oldest first; one may be running."""
        return sorted(self.path.glob("*.jsonl"))

    def finished(self) -> list[Path]:
        """List the runs that can be sent, oldest first."""
        last = {path: read_lines(path)[-1:] for path in self.waiting()}
        return [path for path, end in last.items() if end and end[0].get("event") == "end"]

    def waiting_alias(self, model: str, alias: str) -> dict[str, Any] | None:
        """Return the last change of an alias that was not sent; None without one."""
        events = (event for path in self.waiting() for event in read_lines(path))
        wanted = {"event": "alias", "model": model, "alias": alias}
        found = [event for event in events if wanted.items() <= event.items()]
        return found[-1] if found else None

    def aliases(self) -> dict[str, str]:
        """Read which version each alias named when it was last set or obeyed here."""
        try:
            return dict(json.loads((self.path / ALIASES).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    def note_alias(self, uri: str, model: str, alias: str, number: str) -> None:
        """Keep which version an alias names, after it was set or obeyed."""
        self.path.mkdir(parents=True, exist_ok=True)
        known = {**self.aliases(), f"{uri} {model} {alias}": number}
        write_durably(self.path / ALIASES, json.dumps(known, indent=2, sort_keys=True) + "\n")

    def start_run(self, planned: Manifest) -> OutboxRun:
        """Begin the run of a stage, or resume the one that a kill ended."""
        name = f"{planned.stage}-{planned.making[:16]}"
        ended = self.finished()
        for path in self.path.glob(f"*Z-{planned.stage}-{'?' * 16}.jsonl"):
            if path in ended:
                continue
            if path.stem.endswith(name):
                return OutboxRun(path)
            # Its process is gone: only the holder of the stage's lock starts runs of it.
            OutboxRun(path).end("KILLED")
        tags = {
            "stage": planned.stage,
            "key": planned.making,
            **{f"data.{name}": digest for name, digest in planned.inputs.items()},
            **{f"version.{name}": number for name, number in planned.versions.items()},
        }
        run = self.new_file(name)
        params = {
            key: value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in leaves(planned.config, ".")
        }
        run.append("start", stage=planned.stage, params=params, tags=tags)
        return run

    def new_file(self, name: str) -> OutboxRun:
        """Open a file for the events of a new run, or for some outside of any run."""
        self.path.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        return OutboxRun(self.path / f"{stamp}-{name}.jsonl")
