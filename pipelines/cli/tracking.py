"""Commands around a run: tracking server, champion."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import DEMO
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.config.tracking import TrackingConfig
    from pipelines.engine.runner import StageOutcome
    from pipelines.publishing.promotion import AliasChange
    from pipelines.tracking.outbox import Outbox
    from pipelines.tracking.recorder import Recorder

Bundles = Annotated[
    Path, typer.Option("--bundles", "-b", help="Folder of the bundles (bundle-<version>, current).")
]
Workspace = Annotated[Path, typer.Option("--workspace", "-w", help="Folder of the run.")]


def tracking_of(workspace: Path) -> TrackingConfig:
    """Read the tracking configuration of a workspace's last run; the defaults before one."""
    from pipelines.config.toml import validate
    from pipelines.config.tracking import TrackingConfig

    path = workspace / "config.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return validate(TrackingConfig, table.get("tracking", {}), str(path))


def recorder_of(config: RunConfig) -> Recorder:
    """Return the recorder that a run's configuration asks for."""
    from pipelines.engine.workspace import bundles_dir
    from pipelines.tracking.recorder import Recorder
    from pipelines.tracking.tracking import outbox_of

    return Recorder(
        outbox=outbox_of(config.workspace) if config.tracking.enabled else None,
        bundles=bundles_dir(config),
        model=config.tracking.model,
    )


@contextmanager
def tracked(config: RunConfig) -> Iterator[Recorder]:
    """Track the stages that run inside; send while they run, and the rest at the end."""
    from pipelines.tracking.tracking import outbox_of, sending_meanwhile, sync_outbox

    if not config.tracking.enabled:
        yield recorder_of(config)
        return
    outbox = outbox_of(config.workspace)
    try:
        with sending_meanwhile(outbox, config.tracking):
            yield recorder_of(config)
    except Exception:
        sync_outbox(outbox, config.tracking)
        raise
    send(outbox, config.tracking)


def report_stage(outcome: StageOutcome) -> None:
    """Print a stage's log line."""
    style = "dim" if outcome.skipped else ""
    log.print(outcome.log_line(), style=style, soft_wrap=True)


def sync(workspace: Workspace = DEMO) -> None:
    """Send a workspace's waiting tracking events to its server or database.

    [bold]Example[/] recsys sync --workspace runs/shop
    """
    from pipelines.tracking.tracking import outbox_of, sync_outbox

    if not workspace.is_dir():
        raise ValueError(f"no workspace {workspace}; name one with --workspace")
    result = sync_outbox(outbox_of(workspace), tracking_of(workspace))
    out.print(result.log_line(), markup=False, soft_wrap=True)
    raise typer.Exit(75 if result.waiting else 0)


def send(outbox: Outbox, config: TrackingConfig) -> None:
    """Send waiting tracking events; print what could not be sent."""
    from pipelines.tracking.tracking import sync_outbox

    result = sync_outbox(outbox, config)
    if result.waiting or result.refused:
        log.print(result.log_line(), style="yellow", markup=False, soft_wrap=True)


def change_champion(bundles: Path, move: Callable[..., AliasChange]) -> None:
    """Move the alias, print the new champion, and send it to the registry if it can be reached."""
    from pipelines.tracking.tracking import outbox_of

    workspace = bundles.absolute().parent
    config, outbox = tracking_of(workspace), outbox_of(workspace)
    change = move(bundles, config=config, outbox=outbox)
    before = f" (before: {change.previous})" if change.previous else ""
    out.print(f"champion is {change.version}{before}", markup=False, soft_wrap=True)
    send(outbox, config)


def promote(
    version: Annotated[
        str | None, typer.Argument(help="Version of a bundle; the challenger by default.")
    ] = None,
    bundles: Bundles = DEMO / "bundles",
) -> None:
    """Make a bundle the champion: serve it, and move its alias in the model registry.

    [bold]recsys rollback[/] goes back to the champion before it.

    [bold]Example[/] recsys promote 3f2a9c01b7de --bundles runs/shop/bundles
    """
    from pipelines.publishing.promotion import promote as make_champion

    change_champion(bundles, partial(make_champion, version=version))


def rollback(bundles: Bundles = DEMO / "bundles") -> None:
    """Go back to the champion before this one; once more goes back one further.

    [bold]Example[/] recsys rollback --bundles runs/shop/bundles
    """
    from pipelines.publishing.promotion import rollback as go_back

    change_champion(bundles, go_back)
