"""Track a finished stage by what its artefact holds, so that stages know no tracking.

Only the curve of a training is logged by the stage itself. Metrics are named
<tie order>/<split>/<model>/<metric>, curves <tie order>/<metric>.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import MANIFEST, RUN, Manifest, read_json
from pipelines.engine.run_log import RunLog
from pipelines.tracking.decisions import CHAMPION
from pipelines.tracking.outbox import Outbox, OutboxRun, leaves
from serving.bundle.manifest import CURRENT

DOCUMENTS = {
    **dict.fromkeys(
        ("train_two_tower", "train_sequence", "train_generative", "refit"), "**/training.json"
    ),
    "evaluate": "metrics.json",
    "build_index": "recall.json",
}
"""Files with a stage's results."""


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
