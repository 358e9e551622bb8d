"""A file for each tracked run, so that a slow or absent server never blocks one.

<outbox>/
    <time>-<stage>-<key>.jsonl    one event a line, written as the run ends; removed once sent
    <time>-<stage>-<key>.refused  a file that the store will never accept; its last line says why
    aliases.json                  what each alias named when it was last set or obeyed here

A finished stage is tracked by what its artefact holds; only the curve of a training is logged by
the stage itself. Metrics are named given/<split>/<model>/<metric>, curves
given/<metric>.

MLflow takes seconds to import and changes the environment, so a child with a time limit sends the
files (``pipelines.tracking.store``). Runs that are not sent by then are sent by the next command.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from pipelines.config.operation import TrackingConfig
from pipelines.engine.artifacts import MANIFEST, RUN, Manifest, RunLog, read_json
from pipelines.engine.decisions import CHAMPION, KEY, Decision, check_signature, signed, signing_key
from recsys.data.durable import write_durably
from serving.bundle.manifest import CURRENT, bundle_directory, read_manifest

ALIASES = "aliases.json"
POINTER = "pointer"
"""Tag with the bundle's version and digest, signed if a key is set."""
BUNDLES = "bundles"
"""Tag with the folder of bundles, or its URL, that has the files."""
DOCUMENTS = {
    **dict.fromkeys(
        ("train_two_tower", "train_sequence", "train_generative", "refit"), "**/training.json"
    ),
    "evaluate": "metrics.json",
    "build_index": "recall.json",
}
"""Files with a stage's results."""


def leaves(table: Mapping[str, Any], mark: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """List the values of nested tables with their keys, joined by ``mark``."""
    for name, value in table.items():
        key = f"{above}{mark}{name}" if above else name
        if isinstance(value, Mapping):
            yield from leaves(value, mark, key)
        else:
            yield key, value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file's events, without a line that a kill cut off."""
    found, lines = [], list[bytes]()
    # Another process may have sent and removed it.
    with suppress(FileNotFoundError):
        lines = path.read_bytes().splitlines()
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return [event for event in found if isinstance(event, dict)]


class OutboxRun(RunLog):
    """Collects a run's events; the file is written as the run ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []

    def append(self, event: str, **fields: Any) -> None:
        """Append one event."""
        self.events.append({"event": event, "time": time.time_ns() // 1_000_000, **fields})

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

    def register(self, model: str, bundles: Path, version: str, digest: str) -> None:
        """Enter a bundle into the registry: version, digest and tags."""
        pointer = json.dumps(signed({"bundle": version, "digest": digest}, signing_key()))
        tags = {BUNDLES: str(bundles.absolute()), POINTER: pointer}
        self.append("register", model=model, version=version, digest=digest, tags=tags)

    def alias(self, model: str, name: str, version: str, *, action: str) -> None:
        """Point an alias at a registered bundle."""
        self.append("alias", model=model, alias=name, version=version, action=action)

    def end(self, status: Literal["FINISHED", "FAILED", "KILLED"]) -> None:
        """Close the run, and write its file."""
        self.append("end", status=status)
        lines = (json.dumps(one, ensure_ascii=False, default=str) for one in self.events)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.path, "".join(f"{line}\n" for line in lines))

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
    """The folder of the runs that a store does not have yet."""

    path: Path

    def waiting(self) -> list[Path]:
        """List the runs that can be sent, oldest first."""
        return sorted(self.path.glob("*.jsonl"))

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
        """Begin the run of a stage."""
        tags = {
            "stage": planned.stage,
            "key": planned.making,
            **{f"data.{name}": digest for name, digest in planned.inputs.items()},
            **{f"version.{name}": number for name, number in planned.versions.items()},
        }
        run = self.new_file(f"{planned.stage}-{planned.making[:16]}")
        params = {
            key: value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in leaves(planned.config, ".")
        }
        run.append("start", stage=planned.stage, params=params, tags=tags)
        return run

    def new_file(self, name: str) -> OutboxRun:
        """Name the file of a new run, or of events outside of any run."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        return OutboxRun(self.path / f"{stamp}-{name}.jsonl")

    def enter_change(self, config: TrackingConfig, bundles: Path, change: Decision) -> None:
        """Log a moved alias for the registry, with its bundle."""
        if not config.enabled or change.alias is None:
            return
        digest = read_manifest(bundle_directory(bundles, change.version))[1]
        run = self.new_file(change.outcome.replace(" ", "-"))
        run.register(config.model, bundles, change.version, digest)
        run.alias(config.model, change.alias, change.version, action=change.outcome)
        run.end("FINISHED")


def collect_numbers(table: Mapping[str, Any], above: str = "") -> dict[str, float]:
    """Collect the numbers of nested tables by path; other values are left out."""
    found = leaves(table, "/", above)
    return {key: float(value) for key, value in found if isinstance(value, (int, float))}


def record_release(run: OutboxRun, artefact: Path, bundles: Path, model: str) -> None:
    """Enter the released bundle into the registry, as champion or challenger."""
    document = read_json(artefact / "release.json")
    version, digest = document["version"], document["digest"]
    run.register(model, bundles, version, digest)
    served = (bundles / CURRENT).resolve().name.removeprefix("bundle-")
    if document["alias"] == CHAMPION and served.partition("+")[0] == version:
        # Deltas of the very same bundle stay served.
        version = served
    run.alias(model, document["alias"], version, action="release")


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Tracks each run of a stage in an outbox, or nowhere."""

    outbox: Outbox | None = None
    bundles: Path = Path("bundles")
    model: str = "recsys"

    @contextmanager
    def recording(self, planned: Manifest, artefact: Path) -> Iterator[RunLog]:
        """Track what happens inside, and what the stage then made; an error fails the run."""
        if self.outbox is None:
            yield RunLog()
            return
        with self.outbox.start_run(planned) as run:
            yield run
            run.metrics(collect_numbers(read_json(artefact / MANIFEST)["rows"], "rows"))
            run.metrics(collect_numbers(read_json(artefact / RUN), "run"))
            for path in sorted(artefact.glob(DOCUMENTS.get(planned.stage, "-"))):
                above = path.parent.relative_to(artefact).as_posix()
                run.metrics(collect_numbers(read_json(path), "" if above == "." else above))
            if planned.stage == "release":
                record_release(run, artefact, self.bundles, self.model)
            # MLflow gets no files: this names the ones that the numbers are of.
            run.tags({"artefact": str(artefact.absolute())})


def check_pointer(pointer: str, version: str, digest: str) -> None:
    """Verify the pointer to a bundle.

    The operators' signature on it stands for their decision: it is written with the key of the
    machine that released or promoted the bundle, after the checks of either.

    Raises:
        ValueError: It is of another bundle, altered, or not signed though a key is set.
    """
    advice = f"`recsys release promote {version}` where it was made registers it again"
    key, what = signing_key(), f"the registry's pointer to bundle {version}"
    found = json.loads(pointer) if pointer else {}
    if check_signature(found, key, what) != "signed" and key is not None:
        raise ValueError(f"{what} is not signed, and {KEY} is set; {advice}")
    if found and (found.get("bundle"), found.get("digest")) != (version, digest):
        raise ValueError(f"{what} is of another bundle; {advice}")


class SyncResult(NamedTuple):
    """Result of sending an outbox, in runs."""

    sent: int = 0
    waiting: int = 0
    refused: int = 0
    """Runs that the store will never accept; their files end in ``.refused``."""
    problem: str | None = None

    def log_line(self) -> str:
        """Format one line for the end of a run."""
        refused = f", {self.refused} refused (kept as *.refused)" if self.refused else ""
        waiting = f", {self.waiting} waiting" if self.waiting else ""
        problem = f": {self.problem}" if self.problem else ""
        return f"tracking: {self.sent} runs sent{refused}{waiting}{problem}"


def open_outbox(workspace: Path) -> Outbox:
    """Return the outbox of a workspace."""
    return Outbox(workspace / "tracking" / "outbox")


def store_uri(config: TrackingConfig, outbox: Outbox) -> str:
    """Return the store's address; by default a database next to the outbox."""
    database = f"sqlite:///{(outbox.path.parent / 'mlflow.db').absolute()}"
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or database


def sync_outbox(outbox: Outbox, config: TrackingConfig) -> SyncResult:
    """Send the runs that wait.

    Never raises for what a server, a network or MLflow does: the runs wait for the next time.
    """
    if not outbox.waiting():
        return SyncResult()
    uri = store_uri(config, outbox)
    request = {"uri": uri, "config": asdict(config), "outbox": str(outbox.path.absolute())}
    command = [sys.executable, "-m", "pipelines.tracking.store", json.dumps(request)]
    error = ""
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=config.sync_seconds, check=False
        )
        error = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return SyncResult(**json.loads(child.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        problem = (
            f"{uri} was not done in {config.sync_seconds:g} s; `recsys registry send --seconds "
            "3600` sends for longer"
        )
    except (OSError, IndexError, ValueError) as fault:
        problem = f"asking {uri} failed: {error or fault}"
    return SyncResult(waiting=len(outbox.waiting()), problem=problem)
