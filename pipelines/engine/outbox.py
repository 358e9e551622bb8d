"""What a run tells its tracking server, kept on disk first, so that no server can hold a run up.

<outbox>/
    <time>-<stage>-<key>.jsonl         one line for each thing told; written here, in order, at once
    <time>-<stage>-<key>.state.json    how far it was sent, and to which run of which store
    files/<time>-<stage>-<key>/        copies of the files told of, as they were then
    sent/                              whole runs that the store has
    refused.jsonl                      what the store will never take, with its reason

``pipelines.tracking.sender`` sends it. This file knows no server.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from recsys.data.durable import digest_of_file

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
MAX_NAME = 250
REFUSED = "refused.jsonl"


class RunLog(Protocol):
    """Where one run of a stage tells what it does; also the tracker of a training loop."""

    def log(self, step: int, **values: float) -> None:
        """Keep the numbers known after ``step`` steps; a value may be NaN or infinite."""

    def metrics(self, values: Mapping[str, float]) -> None:
        """Keep the run's results; ``a/b`` groups, as in ``test/cold_items/ndcg@10``."""

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep a copy of a file, a report for example."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Keep words about the run."""

    def register(
        self, model: str, bundle: Path, *, version: str, digest: str, tags: Mapping[str, str]
    ) -> None:
        """Enter a bundle into the model registry; what is entered is its place, not its bytes."""

    def alias(self, model: str, name: str, version: str | None, *, action: str) -> None:
        """Let an alias name a registered bundle, or none."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run: finished, failed with its error, or killed."""


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """What a run begins with."""

    stage: str
    key: str
    """Equal for equal inputs; by it a killed run is found again."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Resolved configuration, as nested tables."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the data and artefacts that go in, by name."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the code and the libraries, by name."""


class Tracking(Protocol):
    """Where the runs of a workspace are kept."""

    def start_run(self, start: RunStart) -> RunLog:
        """Begin a run, or go on with the one that a kill ended."""


class SilentRun:
    """Keeps nothing: the run of a workspace whose tracking is switched off."""

    def log(self, step: int, **values: float) -> None:
        pass

    def metrics(self, values: Mapping[str, float]) -> None:
        pass

    def artifact(self, path: Path, folder: str = "") -> None:
        pass

    def tags(self, values: Mapping[str, str]) -> None:
        pass

    def register(
        self, model: str, bundle: Path, *, version: str, digest: str, tags: Mapping[str, str]
    ) -> None:
        pass

    def alias(self, model: str, name: str, version: str | None, *, action: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class SilentTracking:
    """Hands out silent runs."""

    def start_run(self, start: RunStart) -> SilentRun:
        return SilentRun()


def store_name(name: str) -> str:
    """Spell a name as MLflow takes it: ``ndcg@10`` becomes ``ndcg_at_10``."""
    plain = re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part for part in plain.split("/") if part.strip(". ")]
    return "/".join(parts)[:MAX_NAME] or "_"


def json_number(value: float) -> float | str:
    """Return a finite number as it is and others as words, for which JSON has no numbers."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Turn nested tables into dotted keys."""
    values: dict[str, str] = {}
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            values |= flat(value, f"{key}.")
        else:
            values[key] = value if isinstance(value, str) else json.dumps(value, default=str)
    return values


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the whole lines of an outbox file from a byte on, each with the byte after it.

    A line torn by a kill is passed over; one without its end is not there yet. A file that was
    sent and put away meanwhile has no lines.
    """
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        return
    with opened as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield offset, event


class OutboxRun:
    """Appends what it is told to one file; each line is with the system before a call returns."""

    def __init__(self, path: Path, files: Path) -> None:
        self.path = path
        self._files = files
        # What a killed run told before: the steps since its last checkpoint come again.
        self._told: set[tuple[int, str]] = set()
        torn = False
        if path.exists():
            self._told = {
                (event["step"], name)
                for _, event in read_lines(path)
                if event["event"] == "metrics"
                for name in event["values"]
            }
            torn = not path.read_bytes().endswith(b"\n")
        if torn:
            self._append("\n")

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def tell(self, event: str, **fields: Any) -> None:
        """Append one line."""
        line = {"event": event, "time": time.time_ns() // 1_000_000, **fields}
        self._append(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def log(self, step: int, **values: float) -> None:
        new = {
            name: json_number(value)
            for name, value in values.items()
            if (step, name) not in self._told
        }
        if new:
            self._told |= {(step, name) for name in new}
            self.tell("metrics", step=step, values=new)

    def metrics(self, values: Mapping[str, float]) -> None:
        if values:
            self.tell(
                "metrics", step=0, values={name: json_number(one) for name, one in values.items()}
            )

    def artifact(self, path: Path, folder: str = "") -> None:
        copy = self._files / digest_of_file(path)[:16] / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        self.tell("artifact", file=str(copy.relative_to(self._files)), folder=folder)

    def tags(self, values: Mapping[str, str]) -> None:
        self.tell("tags", values=dict(values))

    def register(
        self, model: str, bundle: Path, *, version: str, digest: str, tags: Mapping[str, str]
    ) -> None:
        place = str(bundle.absolute())
        self.tell(
            "register", model=model, bundle=place, version=version, digest=digest, tags=dict(tags)
        )

    def alias(self, model: str, name: str, version: str | None, *, action: str) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.tell("alias", model=model, alias=name, version=version, action=action, when=when)

    def end(self, status: RunStatus) -> None:
        """Close the run; nothing can be told after it."""
        self.tell("end", status=status)

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
    """The folder; one process at a time writes to it (the holder of the workspace's lock)."""

    path: Path

    def waiting(self) -> list[Path]:
        """List the runs that the store does not have whole, oldest first."""
        found = sorted(self.path.glob("*.jsonl"))
        return [path for path in found if path.name != REFUSED]

    def num_waiting(self) -> int:
        """Count the lines that were told and are not sent."""
        return sum(
            sum(1 for _ in read_lines(path, self.state(path).get("offset", 0)))
            for path in self.waiting()
        )

    def state(self, path: Path) -> dict[str, Any]:
        """Read how far a run was sent; empty where it was not."""
        try:
            found = json.loads(path.with_suffix(".state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def files(self, path: Path) -> Path:
        """Folder of the copies of a run's files."""
        return self.path / "files" / path.stem

    def start_run(self, start: RunStart) -> OutboxRun:
        self.path.mkdir(parents=True, exist_ok=True)
        name = f"{start.stage}-{start.key[:16]}"
        for path in self.waiting():
            if any(event["event"] == "end" for _, event in read_lines(path)):
                continue
            if path.stem.partition("Z-")[2] == name:
                return OutboxRun(path, self.files(path))
            # Its process is gone: only the holder of the lock starts runs.
            OutboxRun(path, self.files(path)).end("KILLED")
        run = self.new_file(name)
        run.tell(
            "start",
            stage=start.stage,
            params=flat(start.config),
            tags={
                "stage": start.stage,
                "key": start.key,
                **{f"data.{name}": digest for name, digest in start.digests.items()},
                **{f"version.{name}": number for name, number in start.versions.items()},
            },
        )
        return run

    def new_file(self, name: str) -> OutboxRun:
        """Open a file for things told outside of a run, or for a run's start."""
        self.path.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = self.path / f"{stamp}-{name}.jsonl"
        return OutboxRun(path, self.files(path))
