"""The command ``recsys parity``: served lists, computed once more."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import AsJson, Run, Store, find_bundles
from pipelines.cli.output import print_json, print_lines, print_progress

if TYPE_CHECKING:
    from pipelines.parity.log import Log
    from pipelines.parity.recompute import ParityReport

MAX_CAUSES = 10


def parity(
    run: Run,
    store: Store = None,
    configs: Annotated[
        list[Path] | None,
        typer.Option(
            "--serving-config",
            envvar="RECSYS_SERVING_CONFIG",
            help="File of surfaces and rules in force (repeatable).",
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Most lists that are computed.")] = 10_000,
    since: Annotated[
        str | None, typer.Option(help="Only lists of the last 90s, 30m, 6h or 7d.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute lists that were served once more, as of their moment, and compare every bit.

    Histories come from the events that had arrived by then, lists from the same bundle. Lists that
    cannot be recomputed are counted by reason. Exits with 3 if a list differs.

    [bold]Examples[/]

      recsys parity runs/shop --store sqlite:runs/shop/online

      recsys parity runs/shop --since 1d --sample 1000 --json
    """
    from pipelines.engine.history import recorded
    from pipelines.parity.recompute import check_parity

    bundles = find_bundles(run)[0]
    place = bundles.absolute().parent
    with recorded(place, "parity") as recording:
        logged = read_log(store or f"sqlite:{place / 'online'}", sample, since)
        if not logged.documents:
            raise ValueError(
                "the log holds no served list; serve some with a store (recsys serve --store), or "
                "name a longer time with --since"
            )

        report = check_parity(logged, bundles, configurations=configs or [], say=print_progress)
        written = report.write(place)
        causes = [one for one in report.differences if one.first][:MAX_CAUSES]
        recording.reasons.append(summarise_parity(report))
        recording.reasons += [f"{one.first:,} lists: {one.what}" for one in causes]
        numbers = ("requests", "recomputed", "equal")
        recording.details |= {name: getattr(report, name) for name in numbers}
        recording.details["skipped"] = dict(report.skipped)
        if as_json:
            print_json(asdict(report))
        else:
            print_lines(*describe_parity(report))
            print_lines(f"report: {written}", note=True)
        if report.differences:
            raise typer.Exit(3)


def read_log(url: str, sample: int, since: str | None) -> Log:
    """Read served lists from a store."""
    import time

    from pipelines.inputs.online_events import opened
    from pipelines.parity.log import log_of_store
    from serving.surfaces import read_duration

    span: Any = read_duration(since)
    is_span = isinstance(span, timedelta)
    since_ms = int(1_000 * (time.time() - span.total_seconds())) if is_span else 0
    with opened(url) as store:
        return log_of_store(store, sample, since_ms)


def summarise_parity(report: ParityReport) -> str:
    """Summarise a parity report in one sentence."""
    if not report.recomputed:
        return f"none of {report.requests:,} lists could be recomputed"
    # Rounded down: 100% is said of all alone.
    percent = int(10_000 * report.equal / report.recomputed) / 100
    return (
        f"{report.equal:,} of {report.recomputed:,} recomputed lists are equal to the last bit "
        f"({percent:g}%)"
    )


def describe_parity(report: ParityReport) -> list[str]:
    """Describe causes of differences, and count the others."""
    from pipelines.parity.recompute import SKIPPED

    lines = [
        f"{report.requests:,} of {report.logged:,} logged lists, {report.seconds:.1f} s",
        summarise_parity(report),
    ]
    for reason, count in report.skipped.items():
        lines.append(f"{count:,} not recomputed: {SKIPPED.get(reason, reason)}")
    causes = [one for one in report.differences if one.first]
    for one in causes:
        apart = f"at most {one.largest:.6g} apart"
        lines.append(f"- {one.what}: {one.first:,} lists, {apart}; example {one.example}")
    if others := len(report.differences) - len(causes):
        lines.append(f"- {others} kinds of difference that follow from these")
    return lines
