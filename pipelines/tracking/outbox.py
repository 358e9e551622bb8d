"""Write-ahead log of tracking events, so that a slow or absent server never blocks a run.

<outbox>/
    <time>-<stage>-<key>.jsonl         one event a line, appended at once and in order
    <time>-<stage>-<key>.state.json    how far it was sent, and to which run of which store
    files/<time>-<stage>-<key>/        copies of the logged files
    sent/                              runs that the store has whole
    refused.jsonl                      events that the store will never accept, with its reason
    aliases.json                       what each alias named when it was last set or obeyed here

``pipelines.tracking.store.sender`` sends it; this module knows no server.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pipelines.engine.artifacts import Manifest
from pipelines.engine.run_log import RunLog
from recsys.data.durable import digest_of_file, write_durably

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
MAX_NAME = 250
REFUSED = "refused.jsonl"
ALIASES = "aliases.json"


def store_name(name: str) -> str:
    """Spell a name as MLflow accepts it: ``ndcg@10`` becomes ``ndcg_at_10``."""
    plain = re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part for part in plain.split("/") if part.strip(". ")]
    return "/".join(parts)[:MAX_NAME] or "_"


def json_number(value: float) -> float | str:
    """Return a finite number as it is and others as text, for which JSON has no numbers."""
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
    """Read a file's complete lines from a byte on, each with the byte after it.

    A line that a kill cut off is passed over; a file that was sent and put away has none.
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


class OutboxRun(RunLog):
    """Appends a run's events to one file; each is with the system before a call returns."""

    def __init__(self, path: Path, files: Path) -> None:
        self.path = path
        self._files = files
        # A resumed run repeats the steps since its last checkpoint.
        self._logged = {
            (event["step"], name)
            for _, event in read_lines(path)
            if event["event"] == "metrics"
            for name in event["values"]
        }
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            self._append_text("\n")

    def _append_text(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def append(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line = {"event": event, "time": time.time_ns() // 1_000_000, **fields}
        self._append_text(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def log(self, step: int, **values: float) -> None:
        new = {name: one for name, one in values.items() if (step, name) not in self._logged}
        self._logged |= {(step, name) for name in new}
        self._log_at(step, new)

    def metrics(self, values: Mapping[str, float]) -> None:
        self._log_at(0, values)

    def _log_at(self, step: int, values: Mapping[str, float]) -> None:
        if values:
            numbers = {name: json_number(value) for name, value in values.items()}
            self.append("metrics", step=step, values=numbers)

    def artifact(self, path: Path, folder: str = "") -> None:
        copy = self._files / digest_of_file(path)[:16] / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        self.append("artifact", file=str(copy.relative_to(self._files)), folder=folder)

    def tags(self, values: Mapping[str, str]) -> None:
        self.append("tags", values=dict(values))

    def register(
        self, model: str, bundle: Path, *, version: str, digest: str, tags: Mapping[str, str]
    ) -> None:
        place = str(bundle.absolute())
        self.append(
            "register", model=model, bundle=place, version=version, digest=digest, tags=dict(tags)
        )

    def companions(self, model: str, bundles: Path, *, version: str, digest: str) -> None:
        place = str(bundles.absolute())
        self.append("companions", model=model, bundles=place, version=version, digest=digest)

    def alias(self, model: str, name: str, version: str | None, *, action: str) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.append("alias", model=model, alias=name, version=version, action=action, when=when)

    def end(self, status: RunStatus) -> None:
        """Close the run; nothing follows."""
        self.append("end", status=status)

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
        """List the runs that the store does not have whole, oldest first."""
        found = sorted(self.path.glob("*.jsonl"))
        return [path for path in found if path.name != REFUSED]

    def num_waiting(self) -> int:
        """Count the events that are not sent."""
        return sum(
            sum(1 for _ in read_lines(path, self.state(path).get("offset", 0)))
            for path in self.waiting()
        )

    def waiting_alias(self, model: str, alias: str) -> dict[str, Any] | None:
        """Return the last change of an alias that was not sent; None without one."""
        found = None
        for path in self.waiting():
            for _, event in read_lines(path, self.state(path).get("offset", 0)):
                named = (event.get("event"), event.get("model"), event.get("alias"))
                if named == ("alias", model, alias):
                    found = event
        return found

    def last_alias(self, uri: str, model: str, alias: str) -> str | None:
        """Return which of a model's versions an alias named when it was last set or obeyed here.

        None where neither happened in this store.
        """
        found = self._aliases().get(f"{uri} {model} {alias}")
        return None if found is None else str(found)

    def note_alias(self, uri: str, model: str, alias: str, number: str) -> None:
        """Keep which version an alias names, after it was set or obeyed."""
        self.path.mkdir(parents=True, exist_ok=True)
        known = {**self._aliases(), f"{uri} {model} {alias}": number}
        write_durably(self.path / ALIASES, json.dumps(known, indent=2, sort_keys=True) + "\n")

    def _aliases(self) -> dict[str, Any]:
        try:
            found = json.loads((self.path / ALIASES).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

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

    def start_run(self, planned: Manifest) -> OutboxRun:
        """Begin the run of a stage, or resume the one that a kill ended."""
        name = f"{planned.stage}-{planned.making[:16]}"
        for path in self.waiting():
            events = [event for _, event in read_lines(path)]
            if any(event["event"] == "end" for event in events):
                continue
            if any(event.get("stage", planned.stage) != planned.stage for event in events[:1]):
                # It may be running beside this one.
                continue
            if path.stem.partition("Z-")[2] == name:
                return OutboxRun(path, self.files(path))
            # Its process is gone: only the holder of the stage's lock starts runs of it.
            OutboxRun(path, self.files(path)).end("KILLED")
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
        path = self.path / f"{stamp}-{name}.jsonl"
        return OutboxRun(path, self.files(path))
