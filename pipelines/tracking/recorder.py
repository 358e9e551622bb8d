"""Track a finished stage by what its artefact holds, so that stages know no tracking.

Only the curve of a training is logged by the stage itself, while it runs. Metrics are named
<tie order>/<split>/<model>/<metric>, curves <tie order>/<metric>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import MANIFEST, RUN, Manifest, read_json
from pipelines.engine.run_log import RunLog
from pipelines.evaluation.analysis import ANALYSIS, Analysis
from pipelines.tracking.decisions import CHAMPION
from pipelines.tracking.entries import registry_entry
from pipelines.tracking.outbox import Outbox
from serving.bundle.manifest import CURRENT


def collect_numbers(table: Mapping[str, Any], above: str = "") -> dict[str, float]:
    """Collect the numbers of nested tables by path; other values are left out."""
    values: dict[str, float] = {}
    for name, value in table.items():
        key = f"{above}/{name}" if above else name
        if isinstance(value, Mapping):
            values |= collect_numbers(value, key)
        elif isinstance(value, (int, float)):
            values[key] = float(value)
    return values


def record_training(run: RunLog, artefact: Path) -> None:
    """Log how each training ended; its curve was logged while it ran."""
    for ending in sorted(artefact.glob("**/training.json")):
        above = ending.parent.relative_to(artefact).as_posix()
        run.metrics(collect_numbers(read_json(ending), "" if above == "." else above))


def record_documents(run: RunLog, artefact: Path) -> None:
    """Log the numbers of each JSON document at the artefact's top."""
    for path in sorted(artefact.glob("*.json")):
        if path.name not in (MANIFEST, RUN):
            document = read_json(path)
            if isinstance(document, dict):
                above = "" if path.stem in ("metrics", "recall") else path.stem
                run.metrics(collect_numbers(document, above))


def record_release(run: RunLog, artefact: Path, bundles: Path, model: str) -> None:
    """Enter the released bundle into the registry, as champion or challenger."""
    document = read_json(artefact / "release.json")
    version, digest = document["version"], document["digest"]
    run.register(model, **registry_entry(bundles, version, digest, document["verdicts"]))
    served = (bundles / CURRENT).resolve().name.removeprefix("bundle-")
    if document["alias"] == CHAMPION and served.partition("+")[0] == version:
        # Deltas of the very same bundle stay served.
        version = served
    run.alias(model, document["alias"], version, action="release")


def collect_analysis(analysis: Analysis) -> dict[str, float]:
    """Collect the ends of intervals, the slices and the measures beyond accuracy."""
    numbers: dict[str, float] = {}
    for order, splits in analysis.orders.items():
        for split, part in splits.items():
            for model, found in part.models.items():
                for name, value in found.intervals.items():
                    numbers[f"{order}/{split}/{model}/{name}/low"] = value.low
                    numbers[f"{order}/{split}/{model}/{name}/high"] = value.high
                for name, number in found.beyond_accuracy.items():
                    numbers[f"{order}/{split}/{model}/{name}"] = number
                for cut in found.slices:
                    for name, value in cut.metrics.items():
                        key = "/".join((order, split, model, "slices", cut.group, cut.name, name))
                        numbers[key] = value.mean
    return numbers


def record_evaluation(run: RunLog, artefact: Path) -> None:
    """Log each model's metrics, their intervals, and those of its slices."""
    run.metrics(collect_numbers(read_json(artefact / "metrics.json")))
    if (artefact / ANALYSIS).exists():
        run.metrics(collect_analysis(Analysis.load(artefact)))


RECORDERS: dict[str, Callable[[RunLog, Path], None]] = {
    "train_two_tower": record_training,
    "train_sequence": record_training,
    "train_generative": record_training,
    "refit": record_training,
    "evaluate": record_evaluation,
    "build_index": record_documents,
}


def record_stage(run: RunLog, stage: str, artefact: Path, *, bundles: Path, model: str) -> None:
    """Log what a stage made, after its artefact was committed."""
    run.metrics(collect_numbers(read_json(artefact / MANIFEST)["rows"], "rows"))
    run.metrics(collect_numbers(read_json(artefact / RUN), "run"))
    if stage in RECORDERS:
        RECORDERS[stage](run, artefact)
    if stage == "release":
        record_release(run, artefact, bundles, model)
    # MLflow gets no files: this names the ones that the numbers are of.
    run.tags({"artefact": str(artefact.absolute())})


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
            record_stage(run, planned.stage, artefact, bundles=self.bundles, model=self.model)
