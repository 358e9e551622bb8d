"""A file for each tracked run, so that a slow or absent server never blocks one.

<outbox>/
    <time>-<stage>-<key>.jsonl    one event a line, appended at once; removed once it is sent
    refused.jsonl                 events that the store will never accept, with the reason
    aliases.json                  what each alias named when it was last set or obeyed here

``pipelines.tracking.store`` sends it; this module knows no server.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pipelines.engine.artifacts import Manifest
from pipelines.engine.run_log import RunLog
from recsys.data.durable import append_line, write_durably

MAX_NAME = 250
REFUSED, ALIASES = "refused.jsonl", "aliases.json"


def store_name(name: str) -> str:
    """Spell a name as MLflow accepts it: ``ndcg@10`` becomes ``ndcg_at_10``."""
    plain = re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part for part in plain.split("/") if part.strip(". ")]
    return "/".join(parts)[:MAX_NAME] or "_"


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Turn nested tables into dotted keys."""
    values: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{above}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            values[f"{above}{name}"] = text
    return values


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
        # A resumed run repeats the steps since its last checkpoint.
        self._logged = {
            (event["step"], name)
            for event in read_lines(path)
            if event["event"] == "metrics"
            for name in event["values"]
        }
        # A line that a kill cut off must not swallow the next one.
        self._before = "\n" if path.exists() and not path.read_bytes().endswith(b"\n") else ""

    def append(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line = {"event": event, "time": time.time_ns() // 1_000_000, **fields}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self._before}{json.dumps(line, ensure_ascii=False, default=str)}\n")
        self._before = ""

    def log(self, step: int, **values: float) -> None:
        new = {name: one for name, one in values.items() if (step, name) not in self._logged}
        self._logged |= {(step, name) for name in new}
        self.metrics(new, step)

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

    def register(self, model: str, **entry: Any) -> None:
        """Enter a bundle into the registry: version, digest, tags, and the line of its decision."""
        self.append("register", model=model, **entry)

    def alias(self, model: str, name: str, version: str | None, *, action: str) -> None:
        """Point an alias at a registered bundle, or at none."""
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.append("alias", model=model, alias=name, version=version, action=action, when=when)

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
        found = sorted(self.path.glob("*.jsonl"))
        return [path for path in found if path.name != REFUSED]

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

    def refuse(self, run: str, event: Mapping[str, Any], reason: str) -> None:
        """Keep an event that the store will never accept."""
        append_line(self.path / REFUSED, json.dumps({"run": run, "reason": reason, **event}))

    def last_alias(self, uri: str, model: str, alias: str) -> str | None:
        """Return the version that an alias named when it was last set or obeyed here, or None."""
        found = self._aliases().get(f"{uri} {model} {alias}")
        return None if found is None else str(found)

    def note_alias(self, uri: str, model: str, alias: str, number: str) -> None:
        """Keep which version an alias names, after it was set or obeyed."""
        self.path.mkdir(parents=True, exist_ok=True)
        known = {**self._aliases(), f"{uri} {model} {alias}": number}
        write_durably(self.path / ALIASES, json.dumps(known, indent=2, sort_keys=True) + "\n")

    def _aliases(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / ALIASES).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    def start_run(self, planned: Manifest) -> OutboxRun:
        """Begin the run of a stage, or resume the one that a kill ended."""
        name = f"{planned.stage}-{planned.making[:16]}"
        for path in self.waiting():
            events = read_lines(path)
            ended = any(event["event"] == "end" for event in events)
            # The run of another stage may be under way.
            if ended or any(one.get("stage", planned.stage) != planned.stage for one in events[:1]):
                continue
            if path.stem.partition("Z-")[2] == name:
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
        run.append("start", stage=planned.stage, params=flat(planned.config), tags=tags)
        return run

    def new_file(self, name: str) -> OutboxRun:
        """Open a file for the events of a new run, or for some outside of any run."""
        self.path.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        return OutboxRun(self.path / f"{stamp}-{name}.jsonl")
