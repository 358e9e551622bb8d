"""The commands ``recsys registry``: bundles and runs in MLflow, to it and from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Run, find_bundles, find_workspace
from pipelines.cli.output import print_lines

if TYPE_CHECKING:
    from pipelines.config.operation import TrackingConfig
    from pipelines.config.run import RunConfig
    from pipelines.tracking.outbox import Outbox, Recorder

app = typer.Typer(no_args_is_help=True)


@app.command("send")
def send_runs(
    run: Run,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit, instead of tracking.sync_seconds.")
    ] = None,
) -> None:
    """Send a workspace's waiting runs to MLflow, and bundles to their folder.

    [bold]Example[/] recsys registry send runs/shop --seconds 3600
    """
    from pipelines.engine.history import recorded
    from pipelines.operations.state import read_tracking
    from pipelines.tracking.outbox import open_outbox, sync_outbox

    workspace = find_workspace(run)
    config = read_tracking(workspace)
    config = replace(config, sync_seconds=seconds or config.sync_seconds)
    with recorded(workspace, "registry send") as recording:
        result = sync_outbox(open_outbox(workspace), config)
        recording.reasons.append(result.log_line())
        print_lines(result.log_line())
        if result.waiting:
            raise typer.Exit(75)


@app.command()
def pull(
    run: Run,
    registry: Annotated[
        str | None,
        typer.Option("--registry", help="MLflow server or database; by default the run's."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the bundles in the registry; by default the run's.")
    ] = None,
) -> None:
    """Serve the bundle that the registry's alias champion names: fetch it, verify it, switch.

    Needs the tracking server, and the folder or URL of the setting tracking.bundles of the run
    that made it; a fetch that was cut off is continued. While the registry cannot be reached, the
    served bundle stays.

    [bold]Examples[/]

      recsys registry pull runs/shop

      recsys registry pull /srv/bundles --registry http://mlflow:5000
    """
    from pipelines.engine.history import recorded
    from pipelines.operations.state import read_tracking
    from pipelines.publishing.from_registry import Pulled
    from pipelines.publishing.from_registry import pull as serve_alias
    from pipelines.publishing.promotion import served_version
    from pipelines.tracking.copies import UnreachableError
    from pipelines.tracking.outbox import open_outbox

    bundles, workspace = find_bundles(run)
    config, outbox = read_tracking(workspace), open_outbox(workspace)
    config = replace(config, uri=registry or config.uri, model=model or config.model)
    # A folder that no run made, as on a machine that only serves, has no history of commands.
    made = workspace if (workspace / "config.toml").exists() else None
    with recorded(made, "registry pull") as recording:
        send(outbox, config)
        try:
            found = serve_alias(bundles, config=config, outbox=outbox)
        except UnreachableError as error:
            if (served := served_version(bundles)) is None:
                raise
            found = Pulled(served, False, f"the registry cannot be reached: {error}")
        recording.reasons.append(found.words)
        recording.details["champion"] = found.version
        if not found.moved:
            recording.outcome = "nothing to do"
        print_lines(f"champion is {found.version}: {found.words}")


def send(outbox: Outbox, config: TrackingConfig) -> None:
    """Send waiting runs; print what could not be sent."""
    from pipelines.tracking.outbox import sync_outbox

    result = sync_outbox(outbox, config)
    if result.waiting or result.refused:
        print_lines(result.log_line(), note=True, style="yellow")


@contextmanager
def tracked(config: RunConfig) -> Iterator[Recorder]:
    """Record the stages that run inside, and send them to MLflow at the end."""
    from pipelines.engine.errors import WorkspaceBusyError
    from pipelines.engine.workspace import bundles_dir
    from pipelines.tracking.outbox import Recorder, open_outbox, sync_outbox

    tracking, outbox = config.tracking, open_outbox(config.workspace)
    recorder = Recorder(
        outbox=outbox if tracking.enabled else None,
        bundles=bundles_dir(config),
        model=tracking.model,
    )
    try:
        yield recorder
    except WorkspaceBusyError:
        # Nothing was run: the command that holds the workspace sends.
        raise
    except Exception:
        if tracking.enabled:
            sync_outbox(outbox, tracking)
        raise
    if tracking.enabled:
        send(outbox, tracking)
