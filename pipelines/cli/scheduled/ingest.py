"""The command ``recsys ingest``: partitions that have arrived."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson, on_a_run
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.engine.history import Recording
    from pipelines.partitions.ingest import IngestReport

Accept = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Take this partition with its changed columns (repeatable)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be read.")]
Until = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="Leave partitions of later days as they are."),
]


@on_a_run
def ingest(
    config: RunConfig,
    accept: Accept = None,
    until: Until = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Read the partitions (days or hours) that are new, late or corrected, each once.

    They are checked and kept as clean Parquet in <workspace>/partitions, rows that cannot be used
    beside them. A partition that cannot be used is set aside with its reason and read anew when
    its files change; what was ingested goes on counting. A changed schema exits with 2.

    [bold]Example[/] recsys ingest --config shop.toml
    """
    from pipelines.engine.history import recorded

    with recorded(config.workspace, "ingest") as recording:
        ingest_recorded(config, recording, accept or [], until=until, dry=dry_run, as_json=as_json)


def ingest_recorded(
    config: RunConfig,
    recording: Recording,
    accepted: list[str],
    *,
    until: datetime | None,
    dry: bool,
    as_json: bool,
) -> None:
    """Read what has arrived and note it in the history."""
    from pipelines.partitions.ingest import ingest as read_partitions

    report = read_partitions(config, say, dry=dry, accepted=accepted, until=key_of_day(until))
    note(recording, report)
    print_report(report, as_json=as_json)
    if report.schema_changes:
        raise ValueError(
            "columns changed in "
            + "; ".join(f"{key}: {why}" for key, why in report.schema_changes.items())
            + ". The earlier partitions go on counting; correct the files, or map the columns "
            "([data] columns), or take it as it is: recsys ingest --accept KEY"
        )


def key_of_day(day: datetime | None) -> str | None:
    """Write a day as the key of its partition."""
    return None if day is None else f"{day:%Y-%m-%d}"


def note(recording: Recording, report: IngestReport) -> None:
    """Note in the history what has arrived, and what is not as usual."""
    if not report.changed and not report.set_aside:
        recording.outcome = "nothing to do"
    recording.reasons += report.notes()
    recording.details["partitions"] = {
        name: value for name, value in asdict(report).items() if value
    }


def bring_in(
    config: RunConfig, recording: Recording, until: datetime | None = None
) -> IngestReport | None:
    """Ingest at the start of a run, where its events are partitions; say what is not as usual."""
    from pipelines.partitions.ingest import ingest as read_partitions

    if config.data.partitions is None:
        return None
    report = read_partitions(config, say, until=key_of_day(until))
    log.print(f"partitions: {report.log_line()}", markup=False, soft_wrap=True)
    for line in report.notes():
        log.print(f"- {line}", markup=False, soft_wrap=True, style="yellow")
    outcome = recording.outcome
    note(recording, report)
    recording.outcome = outcome
    return report


def say(line: str) -> None:
    """Write a line of the log."""
    log.print(line, markup=False, soft_wrap=True, style="dim")


def print_report(report: IngestReport, *, as_json: bool) -> None:
    """Print what a call found."""
    if as_json:
        out.print_json(json.dumps(asdict(report)))
        return
    out.print(report.log_line(), markup=False, soft_wrap=True)
    for line in report.notes():
        out.print(f"- {line}", markup=False, soft_wrap=True)
