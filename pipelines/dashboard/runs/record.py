"""Records of a run: its stages and their cost, digests, versions, and looks at the test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.files import UnreadableError, names_in, number, read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import MANIFEST, RUN, digest_of_json
from pipelines.engine.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A stage as its manifest and ``run.json`` describe it."""

    name: str
    started: str
    seconds: float | None
    peak_memory: float | None
    rows_out: float | None
    output: str
    code: str
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


def read_stages(context: Context, run: Run) -> Sequence[StageRecord]:
    """Read the record of each stage, in the order they began; none if they are gone."""
    folder = run.path if run.kind == "workspace" else context.stores.kept_stages(run)
    names = [] if folder is None else [name for name in names_in(folder) if name[0] != "."]
    if folder is None or not names:
        return ()

    def read() -> Sequence[StageRecord]:
        found = [one for name in names if (one := _stage(folder / name))]
        return sorted(found, key=lambda one: (one.started, one.name))

    return context.cache.get(
        ("stages", str(folder)), [folder / name / MANIFEST for name in names], read
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
        seconds=number(run.get("seconds")),
        peak_memory=number(run.get("peak_memory_bytes")),
        rows_out=number(rows.get("out")) if isinstance(rows, Mapping) else None,
        output=digest_of_json(manifest.get("files", {})),
        code=versions.pop("code", ""),
        versions=versions,
        inputs=_texts(manifest.get("inputs")),
    )


def _texts(table: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in table.items()} if isinstance(table, Mapping) else {}


def raw_files(stages: Sequence[StageRecord]) -> Mapping[str, str]:
    """Return the digest of each raw file by its role."""
    return next((one.inputs for one in stages if one.name == "build_features"), {})


def collect_versions(stages: Sequence[StageRecord]) -> dict[str, str]:
    """Collect the versions of libraries; several if stages were made with several."""
    found: dict[str, set[str]] = {}
    for stage in stages:
        for name, version in stage.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def count_looks(run: Run) -> int:
    """Count the evaluations that read the test split, by the workspace's record."""
    try:
        entries = [] if run.kind == "bundle" else Workspace(run.path).ledger()
    except (OSError, UnicodeDecodeError):
        return 0
    return sum(isinstance(entry, dict) for entry in entries)
