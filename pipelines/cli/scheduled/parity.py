"""The command ``recsys parity``: what was served, computed once more."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import DEMO, AsJson
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.engine.history import Recording
    from pipelines.parity.log import Log
    from pipelines.parity.run import ParityReport

DIFFERENT = 3
"""Exit code where a list differs."""
MAX_NAMED = 10
Bundles = Annotated[
    Path, typer.Option("--bundles", "-b", help="Folder of the bundles that made the lists.")
]
Store = Annotated[
    str | None,
    typer.Option(help="sqlite:FOLDER or redis://HOST:PORT/0; by default the one beside BUNDLES."),
]
Export = Annotated[
    Path | None,
    typer.Option("--log", help="Instead: a folder of recsys events export --records."),
]
Configs = Annotated[
    list[Path] | None,
    typer.Option(
        "--serving-config",
        envvar="RECSYS_SERVING_CONFIG",
        help="File of surfaces and rules in force (repeatable).",
    ),
]
Sample = Annotated[int, typer.Option(min=1, help="Most lists that are computed.")]
Since = Annotated[str | None, typer.Option(help="Only lists of the last 90s, 30m, 6h or 7d.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the report there too.")]


def parity(
    bundles: Bundles = DEMO / "bundles",
    store: Store = None,
    export: Export = None,
    configs: Configs = None,
    sample: Sample = 10_000,
    since: Since = None,
    to: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compute lists that were served once more, as of their moment, and compare every bit.

    Histories come from the events that had arrived by then, features by the batch definitions as
    well as by the serving path, lists from the same bundle. Each kind of difference is named with
    the code that computes it. Lists that cannot be recomputed are counted by reason. Exits with 3
    where a list differs.

    [bold]Examples[/]

      recsys parity --bundles runs/shop/bundles --store sqlite:runs/shop/online

      recsys parity -b runs/shop/bundles --since 1d --sample 1000 --json
    """
    from pipelines.engine.history import recorded

    place = bundles.absolute().parent
    with recorded(place, "parity") as recording:
        if store is not None and export is not None:
            raise ValueError("--store and --log are two places of the same; name one")
        url = f"sqlite:{place / 'online'}" if store is None else store
        report = checked(bundles, _read(url, export, sample, since), configs or [])
        written = report.write(place)
        if to is not None:
            to.write_text(report.to_json(), encoding="utf-8")
        note(recording, report)
        if as_json:
            out.print_json(report.to_json())
        else:
            print_report(report)
            log.print(f"report: {written}", markup=False, soft_wrap=True)
        if report.differences:
            raise typer.Exit(DIFFERENT)


def _read(url: str, export: Path | None, sample: int, since: str | None) -> Log:
    import time

    from pipelines.inputs.opened_store import opened
    from pipelines.parity.log import log_of_export, log_of_store
    from serving.surfaces import duration_of

    span = duration_of(since)
    since_ms = 0
    if isinstance(span, timedelta):
        since_ms = int(1_000 * (time.time() - span.total_seconds()))
    if export is not None:
        return log_of_export(export, sample, since_ms)
    with opened(url) as store:
        return log_of_store(store, sample, since_ms)


def checked(bundles: Path, logged: Log, configs: list[Path]) -> ParityReport:
    """Compute the lists of a log once more.

    Raises:
        ValueError: There are none.
    """
    from pipelines.parity.run import check_parity

    if not logged.documents:
        raise ValueError(
            "the log holds no served list; serve some with a store (recsys serve --store), or name "
            "a longer time with --since"
        )
    return check_parity(
        logged,
        bundles,
        configurations=configs,
        say=lambda line: log.print(line, markup=False, soft_wrap=True, style="dim"),
    )


def note(recording: Recording, report: ParityReport) -> None:
    """Note in the history what was found."""
    recording.reasons.append(sentence(report))
    causes = [one for one in report.differences if one.first][:MAX_NAMED]
    recording.reasons += [f"{one.first:,} lists: {one.what} ({one.path})" for one in causes]
    recording.details |= {
        "requests": report.requests,
        "recomputed": report.recomputed,
        "equal": report.equal,
        "skipped": dict(report.skipped),
    }


def sentence(report: ParityReport) -> str:
    """Say in one sentence what was found."""
    if not report.recomputed:
        return f"none of {report.requests:,} lists could be recomputed"
    share = report.equal / report.recomputed
    # Rounded down: 100% is said of all alone.
    percent = int(10_000 * share) / 100
    return (
        f"{report.equal:,} of {report.recomputed:,} recomputed lists are equal to the last bit "
        f"({percent:g}%)"
    )


def print_report(report: ParityReport) -> None:
    """Print what was found: causes with the code that computes them, what follows as a number."""
    from pipelines.parity.run import SKIPPED

    lines = [
        f"{report.requests:,} of {report.logged:,} logged lists, {report.seconds:.1f} s",
        sentence(report),
        f"{report.with_features:,} of them with features and every source's part",
    ]
    if report.on_their_way:
        lines.append(f"{report.on_their_way:,} of them with events that were being committed")
    for reason, count in report.skipped.items():
        lines.append(f"{count:,} not recomputed: {SKIPPED.get(reason, reason)}")
    causes = [one for one in report.differences if one.first]
    for one in causes:
        lines.append(f"- {one.what}: {one.first:,} lists, at most {one.largest:.6g} apart")
        lines.append(f"  computed by {one.path}; example {one.example}")
    if len(report.differences) > len(causes):
        lines.append(f"- {len(report.differences) - len(causes)} kinds of difference behind these")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
