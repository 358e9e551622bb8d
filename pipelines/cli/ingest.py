"""The command ``recsys ingest``, and the raw data of every run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson, Assignments, OptionalRun, Preset, Until, run_config
from pipelines.cli.output import print_json, print_lines, print_progress

if TYPE_CHECKING:
    from datetime import datetime

    from pipelines.config.run import RunConfig
    from pipelines.engine.history import Recording
    from pipelines.partitions.ingest import IngestReport


def ingest(
    name: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Take this partition's changed columns (repeatable)."),
    ] = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Read the partitions (days) that are new, late or corrected, each once.

    They are checked and kept as clean Parquet in <workspace>/partitions, with the rows that cannot
    be used next to them. A partition that cannot be used is set aside with its reason and read
    again when its files change. A changed schema exits with 2.

    [bold]Example[/] recsys ingest shop.toml
    """
    from pipelines.engine.history import recorded
    from pipelines.partitions.ingest import ingest as read_partitions

    config = run_config(name, preset, assignments)
    with recorded(config.workspace, "ingest") as recording:
        report = read_partitions(
            config, print_progress, accepted=accept or [], until=format_day(until)
        )
        if not report.changed and not report.set_aside:
            recording.outcome = "nothing to do"
        note_ingest(recording, report)
        if as_json:
            print_json(asdict(report))
        else:
            print_lines(report.log_line(), *(f"- {line}" for line in report.notes()))
        if report.schema_changes:
            raise ValueError(
                "columns changed in "
                + "; ".join(f"{key}: {why}" for key, why in report.schema_changes.items())
                + ". The earlier partitions still count; correct the files, or map the columns "
                "([data] columns), or take it as it is: recsys ingest --accept KEY"
            )


def note_ingest(recording: Recording, report: IngestReport) -> None:
    """Note new partitions and unusual findings in the history."""
    recording.reasons += report.notes()
    recording.details["partitions"] = {
        name: value for name, value in asdict(report).items() if value
    }


def format_day(day: datetime | None) -> str | None:
    """Format a day as the key of its partition."""
    return None if day is None else f"{day:%Y-%m-%d}"


def with_data(config: RunConfig, recording: Recording, until: datetime | None = None) -> RunConfig:
    """Read databases and the partitions that have arrived; return where all raw tables are."""
    from pipelines.inputs.online_events import with_forgotten
    from pipelines.inputs.snapshots import with_snapshots
    from pipelines.partitions.ingest import ingest as read_partitions
    from pipelines.presets import resolve as presets

    config = with_snapshots(with_forgotten(config), print_progress)
    if config.data.partitions is not None:
        report = read_partitions(config, print_progress, until=format_day(until))
        print_lines(f"partitions: {report.log_line()}", note=True)
        print_lines(*(f"- {line}" for line in report.notes()), note=True, style="yellow")
        note_ingest(recording, report)
    return presets.with_online_events(presets.with_dataset(config))
