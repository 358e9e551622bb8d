"""The command ``recsys monitor``: drift and freshness of the days."""

from __future__ import annotations

import json
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson, Open, on_a_run
from pipelines.engine.console import out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.monitoring.run import Monitored

AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Watch the days that were over by then, such as 2026-11-22; now without.",
    ),
]


@on_a_run
def monitor(
    config: RunConfig,
    as_of: AsOf = None,
    as_json: AsJson = False,
    browse: Open = False,
) -> None:
    """Watch each day for drift, and each input for its age; exits with 5 where an alarm is raised.

    Events, items, vectors and codes of the served bundle, features and served lists are compared
    with the days before. Thresholds are learned from the past, so a signal with too little of it
    says so. The settings are those of [monitoring].

    [bold]Examples[/]

      recsys monitor --config shop.toml

      recsys monitor --workspace runs/shop --as-of 2026-11-22 --open
    """
    from pipelines.engine.errors import AlarmError
    from pipelines.engine.history import recorded
    from pipelines.monitoring.run import moment_of
    from pipelines.monitoring.run import monitor as watch
    from pipelines.presets.resolve import with_online_events

    with recorded(config.workspace, "monitor") as recording:
        found = watch(with_online_events(config), None if as_of is None else moment_of(as_of))
        document = found.document
        recording.details |= {
            name: document[name] for name in ("day", "alarms", "retrain", "measured_days")
        }
        print_monitored(found, as_json=as_json)
        if browse:
            webbrowser.open(found.page.absolute().as_uri())
        if found.alarm:
            raise AlarmError(f"{document['day']}: alarm of {', '.join(document['alarms'])}")


def print_monitored(found: Monitored, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        out.print_json(json.dumps(found.document))
    else:
        for line in found.document["words"]:
            out.print(line, markup=False, soft_wrap=True)
        out.print(f"page: {found.page}", markup=False, soft_wrap=True)
