"""Stage report: the evaluation as one self-contained HTML file.

Writes report.html, and report.json with its values.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from pipelines.config.run import OWN_DATA, RunConfig
from pipelines.config.toml import to_toml
from pipelines.engine.artifacts import Manifest, plain, read_json, to_json
from pipelines.engine.stage import StageContext, StageRows, installed_version
from pipelines.evaluation.analysis import ANALYSIS
from pipelines.inputs.tensors import split_kind

HTML = "report.html"
NUMBERS = "report.json"
WITHOUT = {"workspace", "semantic_ids", "adapter", "index", "release", "tracking"}
"""Sections that the metrics do not depend on, or only by artefacts that are read."""
SECTIONS = (
    "data.dataset",
    *(section.name for section in fields(RunConfig) if section.name not in WITHOUT),
)
LIBRARIES = ("recsys-platform", "torch", "polars", "numpy")
NO_HELD_OUT = "there is no report, because no user has a held-out event to measure lists by"


def format_settings(config: RunConfig) -> str:
    """Write the settings that the metrics depend on as TOML, without paths."""
    sections = {name for name in SECTIONS if "." not in name}
    table = {name: value for name, value in plain(config).items() if name in sections}
    for key in ("events", "items", "users", "partitions", "online_events", "forgotten"):
        table["data"].pop(key, None)
    return to_toml(table)


def report(context: StageContext) -> StageRows:
    """Write the report of the evaluation."""
    # Altair is slow to import.
    from pipelines.pages.file import write_page
    from pipelines.pages.report import report_page
    from pipelines.pages.report_data import Provenance, read_report_data

    config, inputs = context.config, context.inputs
    if not (inputs["evaluate"] / ANALYSIS).exists():
        (context.output / NUMBERS).write_text(to_json({"absent": NO_HELD_OUT}))
        return StageRows(rows_in=0, rows_out=0)
    built, measured = (Manifest.load(inputs[name]) for name in ("build_features", "evaluate"))
    data = read_report_data(
        inputs,
        title=config.data.dataset or OWN_DATA,
        split_kind=split_kind(inputs["build_features"]),
        excludes_history=config.evaluation.exclude_history,
        provenance=Provenance(
            data_digest=built.output if built else "",
            evaluation_digest=measured.output if measured else "",
            raw_files=built.inputs if built else {},
            versions={name: installed_version(name) for name in LIBRARIES},
            settings=format_settings(config),
            dataset=config.data.dataset,
            num_test_looks=len(context.workspace.ledger()),
        ),
    )
    write_page(report_page(data), context.output / HTML)
    (context.output / NUMBERS).write_text(to_json(data.as_json()), encoding="utf-8")
    return StageRows(rows_in=data.measured("test").num_targets, rows_out=len(data.models))


def counts_all_looks(context: StageContext) -> bool:
    """Check whether the report has the ledger's number of looks at the test split."""
    numbers = read_json(context.output / NUMBERS)
    if "absent" in numbers:
        return True
    shown: int = numbers["provenance"]["num_test_looks"]
    return shown == len(context.workspace.ledger())


def report_path(workspace: Path) -> Path:
    """Return the path of a workspace's report."""
    return workspace / "report" / HTML
