"""Runs that MLflow has on record: earlier evaluations of workspaces, and runs of others.

A workspace keeps its newest run; what it evaluated before is in its store alone. A run that both
have is listed once, as the workspace's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.dashboard.runs.documents import (
    UnreadableError,
    finite,
    key_of,
    names_in,
    released_order,
)
from pipelines.dashboard.runs.run import Run, Status
from pipelines.dashboard.runs.settings import (
    Settings,
    dataset_of,
    read_settings,
)
from pipelines.publishing.checks import served_row
from pipelines.ranking.artefact import RANKED
from pipelines.tracking.history import TrackedRun, read_stores
from pipelines.tracking.store.connection import local_path

DATABASE = "tracking/mlflow.db"
SENT = "tracking/outbox/sent"
OURS = ("mlflow.", "data.", "version.", "recsys.run", "stage", "key", "error")
"""How the names of tags begin that no person wrote."""
LOGGED = "logged/run"
"""Split and model of what others logged, which have none."""
FINISHED = "FINISHED"


def earlier_evaluations(run: Run) -> str | None:
    """Return the address of a workspace's store, if it has evaluations that the workspace lost.

    The outbox names what was sent, so that MLflow is opened for few of many workspaces.
    """
    if run.path is None or not (run.path / DATABASE).is_file():
        return None
    sent = [name for name in names_in(run.path / SENT) if "Z-evaluate-" in name]
    keys = {name.rpartition("-")[2].partition(".")[0] for name in sent}
    if sent and run.evaluation and keys <= {run.evaluation[:16]}:
        return None
    return f"sqlite:///{(run.path / DATABASE).absolute()}"


@dataclass
class _Store:
    """What was read of a store."""

    stamp: tuple[float, ...]
    read_at: float
    runs: dict[str, TrackedRun]
    problem: str | None = None

    def since(self) -> int:
        """From when on runs must be read: those before are done."""
        started = [(run.started, run.ended) for run in self.runs.values() if run.started]
        going = [began for began, ended in started if ended is None]
        first = min(going) if going else max((began for began, _ in started), default=None)
        return 0 if first is None else int(first.timestamp() * 1000)


class TrackedRuns:
    """Reads stores, and those alone that changed; a server is read every `rest` seconds."""

    def __init__(self, rest: float = 60.0) -> None:
        self._rest = rest
        self._stores: dict[str, _Store] = {}
        self._runs: dict[str, Run] = {}
        self._tagged: dict[str, tuple[Run, Run, Run]] = {}

    def stale(self, uris: Iterable[str]) -> list[str]:
        """Name the stores that must be read."""
        now = time.monotonic()
        found = []
        for uri in uris:
            kept = self._stores.get(uri)
            rested = kept is None or now - kept.read_at >= self._rest
            if rested and (kept is None or not kept.stamp or kept.stamp != _stamp(uri)):
                found.append(uri)
        return found

    def read(self, uris: Sequence[str]) -> None:
        """Read stores, in a child process."""
        stamps = {uri: _stamp(uri) for uri in uris}
        since = {uri: kept.since() if (kept := self._stores.get(uri)) else 0 for uri in uris}
        for uri, history in read_stores(since).items():
            kept = self._stores.get(uri)
            # A store that cannot be read now keeps what it had, and that is said.
            runs = dict(kept.runs) if kept else {}
            runs |= {run.run_id: run for run in history.runs}
            # Another thread merges what is in `_stores` and needs the runs of all of it.
            self._runs |= {f"{uri} {run.run_id}": _run_of(run, uri) for run in history.runs}
            self._stores[uri] = _Store(stamps[uri], time.monotonic(), runs, history.problem)

    def problems(self, uris: Iterable[str]) -> list[str]:
        """Say which stores could not be read, or are not yet."""
        stores = [(uri, self._stores.get(uri)) for uri in uris]
        waiting = [uri for uri, store in stores if store is None]
        said = [
            f"the MLflow store {uri} cannot be read: {store.problem}"
            for uri, store in stores
            if store is not None and store.problem
        ]
        return [*said, *(f"the MLflow store {uri} is being read" for uri in waiting)]

    def merged(self, uris: Sequence[str], runs: Sequence[Run]) -> list[Run]:
        """Add the runs of stores to others; tags that people set go to the run that both have."""
        found: dict[str, Run] = {}
        for uri in uris:
            store = self._stores.get(uri)
            for run_id in store.runs if store else ():
                run = self._runs[f"{uri} {run_id}"]
                known = found.get(run.evaluation or run.key)
                if known is None or (known.time and run.time and run.time > known.time):
                    found[run.evaluation or run.key] = run
        merged = []
        for run in runs:
            tracked = found.pop(run.evaluation, None) if run.evaluation else None
            merged.append(run if tracked is None else self._with_tags(run, tracked))
        return [*merged, *found.values()]

    def _with_tags(self, run: Run, tracked: Run) -> Run:
        """Add the tags of MLflow's record; the same run as long as neither changes."""
        kept = self._tagged.get(run.key)
        if kept is None or kept[0] is not run or kept[1] is not tracked:
            tagged = replace(run, tags={**run.tags, **tracked.tags})
            kept = self._tagged[run.key] = (run, tracked, tagged)
        return kept[2]


def _stamp(uri: str) -> tuple[float, ...]:
    """Say which version of a local store is there; nothing of a server's."""
    place = local_path(uri)
    if place is None:
        return ()
    try:
        stat = place.stat()
    except OSError:
        return (0.0, 0.0)
    return (stat.st_mtime, float(stat.st_size))


def _run_of(tracked: TrackedRun, uri: str) -> Run:
    ours = tracked.key is not None
    metrics, problems = _metrics(tracked, ours)
    settings, said = _settings(tracked)
    problems += said
    config = settings.flat or dict(tracked.params)
    status: Status = "complete" if tracked.status == FINISHED else "unfinished"
    if status == "unfinished":
        why = f": {tracked.tags['error']}" if "error" in tracked.tags else ""
        problems.insert(0, f"MLflow has it as {tracked.status.lower()}{why}")
    place = local_path(uri)
    # <workspace>/tracking/mlflow.db, or a store of its own.
    owner = place.parent.parent.name if place and place.parent.name == "tracking" else None
    moment = tracked.ended or tracked.started
    when = f" {moment:%Y-%m-%d %H:%M}" if moment else ""
    name = f"{owner or tracked.experiment}{when}" if ours else tracked.name or tracked.run_id
    tags = {"mlflow": tracked.run_id, "experiment": tracked.experiment}
    tags |= {k: v for k, v in tracked.tags.items() if not k.startswith(OURS)}
    return Run(
        key=key_of(f"{uri} {tracked.run_id}"),
        name=name,
        kind="mlflow",
        status=status,
        time=moment,
        path=None,
        metrics=metrics,
        config=config,
        config_digest=settings.digest,
        data_digest=tracked.tags.get("data.build_features"),
        dataset=dataset_of(config) if ours else None,
        tags=tags,
        served=_served(metrics) if ours else None,
        evaluation=tracked.key,
        problems=tuple(problems),
    )


def _metrics(tracked: TrackedRun, ours: bool) -> tuple[dict[str, float], list[str]]:
    if not ours:
        return finite((f"{LOGGED}/{name}", value) for name, value in tracked.metrics.items())
    parts = [(name.split("/"), value) for name, value in tracked.metrics.items()]
    orders = dict.fromkeys(part[0] for part, _ in parts if len(part) == 4)
    if not orders:
        return {}, []
    order = released_order(orders)
    return finite(
        ("/".join(part[1:]), value) for part, value in parts if len(part) == 4 and part[0] == order
    )


def _settings(tracked: TrackedRun) -> tuple[Settings, list[str]]:
    """Read the configuration that the run logged as a file, where its files are on this machine."""
    if tracked.artifacts is None:
        return Settings(), []
    try:
        return read_settings(tracked.artifacts) or Settings(), []
    except UnreadableError as error:
        return Settings(), [str(error)]


def _served(metrics: Mapping[str, float]) -> str | None:
    """Name the served list; None where it is not known whether the ranker was served."""
    models = {name.split("/")[1] for name in metrics if name.startswith("test/")}
    found = served_row({model: {} for model in models})
    return found if found in models and found != RANKED else None
