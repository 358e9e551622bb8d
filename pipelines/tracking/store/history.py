"""Read the evaluations that MLflow stores have on record, in a process of its own.

``pipelines.tracking.history`` starts it as ``python -m pipelines.tracking.store.history REQUEST``.
It prints one line of JSON a run, and one a store: its ``uri`` and the ``problem``, or null.
Stages other than evaluate are left out by the store: they are most of its runs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.config.tracking import TrackingConfig
from pipelines.tracking.store.connection import answers, local_path, mlflow_client
from pipelines.tracking.tracking import is_server

PAGE = 1000
MAX_PARTS = 3
"""Slashes in a name that is read: <order>/<split>/<model>/<metric>."""
FILTERS = ("tags.stage = 'evaluate'", "tags.stage IS NULL")
"""Evaluations of ours, and runs of others."""


def runs_of(client: Any, since: int) -> Iterator[dict[str, Any]]:
    """List runs of all experiments that began at or after a time in milliseconds."""
    names = {one.experiment_id: one.name for one in _paged(client.search_experiments)}
    if not names:
        return
    for condition in FILTERS:
        search = f"{condition} and attributes.start_time >= {since}"
        for run in _paged(client.search_runs, list(names), filter_string=search):
            yield _plain(run, names[run.info.experiment_id])


def _paged(search: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    token = None
    while True:
        part = search(*arguments, max_results=PAGE, page_token=token, **options)
        yield from part
        token = part.token
        if not token:
            return


def _plain(run: Any, experiment: str) -> dict[str, Any]:
    values: Mapping[str, float] = run.data.metrics
    return {
        "id": run.info.run_id,
        "name": run.info.run_name or "",
        "experiment": experiment,
        "status": run.info.status,
        "started": run.info.start_time,
        "ended": run.info.end_time,
        "artifacts": run.info.artifact_uri or "",
        # JSON has no NaN. Those of slices and the ends of intervals are most of what ours log.
        "metrics": {
            name: value if math.isfinite(value) else str(value)
            for name, value in values.items()
            if name.count("/") <= MAX_PARTS
        },
        "params": dict(run.data.params),
        "tags": dict(run.data.tags),
    }


def read(uri: str, since: int, config: TrackingConfig) -> Iterator[dict[str, Any]]:
    """Read one store; the last value says what was wrong."""
    problem = None
    place = local_path(uri)
    try:
        if place is not None and not place.exists():
            problem = f"{place} does not exist"
        elif is_server(uri) and not answers(uri, config.request_seconds):
            problem = "no answer"
        else:
            for run in runs_of(mlflow_client(uri, config), since):
                yield {"uri": uri, "run": run}
    except Exception as error:
        # Whatever a server, a database or a file of another version can raise.
        lines = str(error).splitlines() or [""]
        problem = f"{type(error).__name__}: {lines[0]}"[:300]
    yield {"uri": uri, "problem": problem}


def main() -> None:
    """Read the stores of the request in the arguments."""
    request = json.loads(sys.argv[1])
    config = TrackingConfig(**request["config"])
    for uri, since in request["stores"].items():
        for line in read(uri, since, config):
            sys.stdout.write(f"\n{json.dumps(line)}")
        sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
