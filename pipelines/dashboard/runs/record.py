"""What is on record about a run: stages and their cost, digests, versions, the ledger, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import UnreadableError, names_in, read_table
from pipelines.dashboard.workspaces.find import RELEASED
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import MANIFEST, RUN, digest_of_json
from pipelines.engine.formats import duration, size
from pipelines.engine.workspace import Workspace
from pipelines.pages.columns import texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Column,
    Link,
    LinkedCell,
    Origin,
    Table,
    Words,
)
from pipelines.publishing.released import shop_workspace

SHOWN_FILES = (
    ("report/report.html", "the report"),
    ("config.toml", "the configuration"),
    ("evaluate/metrics.json", "all metrics"),
    ("evaluate/analysis.json", "intervals, slices and tests"),
    ("release/release.json", "what was released"),
    ("refused.json", "why the last bundle was refused"),
    ("ledger.jsonl", "looks at the test split"),
    ("history.jsonl", "commands that ran here"),
    ("manifest.json", "the manifest"),
)
MAX_LEDGER = 200


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A stage as its manifest and ``run.json`` describe it."""

    name: str
    started: str
    seconds: float | None
    peak_memory: int | None
    rows_out: int | None
    output: str
    """Digest of what came out."""
    code: str
    """Digest of the stage's code."""
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


def kept_folder(context: Context, run: Run) -> Path | None:
    """Find where the stages behind a run lie; None where they are gone."""
    if run.kind != "bundle":
        return run.path
    if run.made_by is None:
        return None
    try:
        workspace = context.stores.run(run.made_by).path
    except NotFoundError:
        return None
    if workspace is None:
        return None
    shop = shop_workspace(workspace)
    folder = shop / RELEASED / run.name.partition("+")[0]
    return folder if folder.is_dir() else None


def stages_of(context: Context, run: Run) -> Sequence[StageRecord]:
    """Read the record of each stage, in the order they began."""
    folder = kept_folder(context, run)
    if folder is None:
        return ()
    names = [name for name in names_in(folder) if not name.startswith(".")]
    files = [folder / name / MANIFEST for name in names]
    return context.cache.get(
        ("stages", str(folder)),
        files,
        lambda: sorted(
            [one for name in names if (one := _stage(folder / name))],
            key=lambda one: (one.started, one.name),
        ),
    )


def _stage(folder: Path) -> StageRecord | None:
    try:
        manifest, run = read_table(folder / MANIFEST), read_table(folder / RUN) or {}
    except UnreadableError:
        return None
    if manifest is None or "stage" not in manifest:
        return None
    versions = _texts(manifest.get("versions"))
    rows = manifest.get("rows")
    return StageRecord(
        name=folder.name,
        started=str(run.get("started", "")),
        seconds=_number(run.get("seconds")),
        peak_memory=_whole(run.get("peak_memory_bytes")),
        rows_out=_whole(rows.get("out")) if isinstance(rows, Mapping) else None,
        output=digest_of_json(manifest.get("files", {})),
        code=versions.pop("code", ""),
        versions=versions,
        inputs=_texts(manifest.get("inputs")),
    )


def _texts(table: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in table.items()} if isinstance(table, Mapping) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def raw_files_of(stages: Sequence[StageRecord]) -> Mapping[str, str]:
    """Return the digest of each raw file by its role."""
    found = [one.inputs for one in stages if one.name == "build_features"]
    return found[0] if found else {}


def versions_of(stages: Sequence[StageRecord]) -> dict[str, str]:
    """Collect the versions of libraries; several where stages were made with several."""
    found: dict[str, set[str]] = {}
    for stage in stages:
        for name, version in stage.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def cost_blocks(stages: Sequence[StageRecord], origins: Sequence[Origin]) -> list[Block]:
    """Lay out what each stage took."""
    from pipelines.pages.charts.costs import Cost, cost_chart

    timed = [one for one in stages if one.seconds is not None]
    if not timed:
        return [Words(lines=["What its stages took is not on record."])]
    rows = [(one.name, one.seconds, one.peak_memory, one.rows_out, one.started) for one in timed]
    bars = [
        Cost(
            label=one.name,
            amount=one.seconds or 0.0,
            note=f"{one.name}: {duration(one.seconds or 0)}, {size(one.peak_memory or 0)}",
        )
        for one in timed
    ]
    return [
        Chart(
            key="cost",
            title="Time by stage",
            note="Seconds of each stage, in the order they ran. A stage whose inputs did not "
            "change is kept from an earlier run, with what it took then.",
            description=f"Seconds of each of {len(timed)} stages.",
            spec=cost_chart(bars, x_title="seconds"),
            columns=("stage", "seconds", "peak memory (bytes)", "rows out", "started (UTC)"),
            rows=rows,
            origins=origins,
        )
    ]


def settings_table(run: Run, origins: Sequence[Origin]) -> Table:
    """Lay out the configuration."""
    return Table(
        key="settings",
        title="Configuration",
        note="Every setting by its dotted name, as the run resolved it from preset, file and "
        "--set. Search by name or value.",
        columns=[*texts("Setting", "Value")],
        rows=sorted(run.config.items()),
        origins=origins,
    )


def digests_table(run: Run, stages: Sequence[StageRecord], origins: Sequence[Origin]) -> Table:
    """Lay out digests and versions: what to compare to know that two runs are of the same."""
    known = [("configuration", run.config_digest), ("features", run.data_digest)]
    rows = [(what, "", digest) for what, digest in known if digest]
    rows += [(f"raw file: {role}", "", digest) for role, digest in raw_files_of(stages).items()]
    rows += [(f"code of {one.name}", "", one.code) for one in stages if one.code]
    rows += [(f"output of {one.name}", "", one.output) for one in stages]
    rows += [(name, version, "") for name, version in sorted(versions_of(stages).items())]
    return Table(
        key="digests",
        title="Digests and versions",
        note="sha256 of what the run was made from and of what came out; equal digests mean equal "
        "bytes.",
        columns=[*texts("What", "Version", "Digest")],
        rows=rows,
        origins=origins,
    )


def ledger_blocks(run: Run) -> list[Block]:
    """List the looks at a test split that the workspace has on record."""
    entries = _ledger(run)
    if not entries:
        return [Words(lines=["No look at a test split is on record."])]
    rows: list[Sequence[Cell | LinkedCell]] = []
    for entry in reversed(entries[-MAX_LEDGER:]):
        if "torn" in entry:
            rows.append(("", "a line that a kill cut off", "", ""))
            continue
        made = str(entry.get("making", ""))
        this = "this evaluation" if made and made == run.evaluation else ""
        rows.append((str(entry.get("time", "")), str(entry.get("stage", "")), made[:12], this))
    return [
        Table(
            key="ledger",
            title=f"{len(entries):,} looks at the test split",
            note="Each evaluation that read it. The more often it is looked at before a choice, "
            "the more a lead on it may be chance.",
            columns=[Column(label="When", format="time"), *texts("Stage", "Made from", "")],
            rows=rows,
        )
    ]


def _ledger(run: Run) -> list[dict[str, Any]]:
    if run.kind != "workspace":
        return []
    try:
        found = Workspace(run.path).ledger()
    except (OSError, UnicodeDecodeError):
        return []
    return [entry for entry in found if isinstance(entry, dict)]


def num_looks(run: Run) -> int:
    """Count the looks at the test split."""
    return len(_ledger(run))


def files_words(run: Run) -> Words:
    """Link to the files of a run that a browser shows."""
    there = [(name, label) for name, label in SHOWN_FILES if (run.path / name).is_file()]
    if not there:
        return Words(lines=["It has no files here."])
    return Words(
        lines=[f"In {run.path}:"],
        links=[Link(label=label, file=f"{run.key}/{name}") for name, label in there],
    )
