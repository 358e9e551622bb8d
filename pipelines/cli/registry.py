"""The commands ``recsys registry``: bundles and runs in MLflow, to it and from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import Run, find_bundles, find_workspace
from pipelines.cli.output import print_lines

if TYPE_CHECKING:
    from pipelines.config.operation import TrackingConfig
    from pipelines.config.run import RunConfig
    from pipelines.tracking.outbox import Outbox
    from pipelines.tracking.recorder import Recorder

app = typer.Typer(no_args_is_help=True)
RegistryAddress = Annotated[
    str | None, typer.Option("--registry", help="MLflow server or database; by default the run's.")
]
ModelName = Annotated[
    str | None, typer.Option(help="Name of the bundles in the registry; by default the run's.")
]


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
    from pipelines.tracking.tracking import open_outbox, sync_outbox

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
def fetch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder that the bundle is fetched into.")
    ],
    name: Annotated[str, typer.Argument(help="Version of a bundle, or an alias: champion.")],
    registry: RegistryAddress = None,
    model: ModelName = None,
) -> None:
    """Fetch a registered bundle, verified by its digest, so that this machine can serve it.

    Needs the tracking server, and the folder or URL of the setting tracking.bundles of the run
    that made it; a fetch that was cut off is continued. The first bundle of a folder is served at
    once; recsys registry follow fetches later ones.

    [bold]Examples[/]

      recsys registry fetch /srv/bundles champion --registry http://mlflow:5000

      recsys serve /srv/bundles
    """
    from pipelines.publishing.from_registry import fetch_bundle, fetched_words

    bundles, _, config, outbox = read_registry(run, registry, model)
    fetched, served = fetch_bundle(name, bundles, config=config, outbox=outbox)
    then = f"recsys serve {run}" if served else f"recsys release promote {run} {fetched.version}"
    words = f"bundle {fetched.version} is in {bundles}: {fetched_words(fetched)}"
    print_lines(f"{words}; next: {then}")


@app.command()
def follow(
    run: Run,
    if_reachable: Annotated[
        bool, typer.Option("--if-reachable", help="Succeed if the registry cannot be reached.")
    ] = False,
    registry: RegistryAddress = None,
    model: ModelName = None,
) -> None:
    """Serve the bundle that the registry's alias champion names: fetch it, verify it, switch.

    [bold]Example[/] recsys registry follow runs/shop --if-reachable
    """
    from pipelines.engine.history import recorded
    from pipelines.publishing.from_registry import follow_registry
    from pipelines.publishing.promotion import served_version
    from serving.bundle.copies import UnreachableError

    bundles, workspace, config, outbox = read_registry(run, registry, model)
    # A folder that no run made, as on a machine that only serves, has no history of commands.
    made = workspace if (workspace / "config.toml").exists() else None
    with recorded(made, "registry follow") as recording:
        send(outbox, config)
        try:
            found = follow_registry(bundles, config=config, outbox=outbox)
        except UnreachableError as error:
            if not if_reachable:
                raise
            served = served_version(bundles)
            state = f"{served} is still served" if served else "nothing is served"
            words = f"the registry cannot be reached, {state}: {error}"
            recording.outcome = "nothing to do"
            recording.reasons.append(words)
            print_lines(words, note=True, style="yellow")
            return
        recording.reasons.append(found.words)
        recording.details["champion"] = found.version
        if not found.moved:
            recording.outcome = "nothing to do"
        print_lines(f"champion is {found.version}: {found.words}")
        send(outbox, config)


def read_registry(
    run: Path, uri: str | None, model: str | None
) -> tuple[Path, Path, TrackingConfig, Outbox]:
    """Return a run's bundles, its workspace, its tracking configuration and its outbox."""
    from pipelines.operations.state import read_tracking
    from pipelines.tracking.tracking import open_outbox

    bundles, workspace = find_bundles(run)
    config = read_tracking(workspace)
    config = replace(config, uri=uri or config.uri, model=model or config.model)
    return bundles, workspace, config, open_outbox(workspace)


def send(outbox: Outbox, config: TrackingConfig) -> None:
    """Send waiting runs; print what could not be sent."""
    from pipelines.tracking.tracking import sync_outbox

    result = sync_outbox(outbox, config)
    if result.waiting or result.refused:
        print_lines(result.log_line(), note=True, style="yellow")


@contextmanager
def entering_registry(bundles: Path) -> Iterator[Callable[[Path, Any], None]]:
    """Register bundles that are appended inside in the registry of a run's workspace.

    A folder of bundles that no run made, as on a machine that only serves, has no registry.
    """
    from pipelines.operations.state import read_tracking
    from pipelines.tracking.entries import enter_change
    from pipelines.tracking.tracking import open_outbox

    workspace = bundles.absolute().parent
    config, outbox = read_tracking(workspace), open_outbox(workspace)

    def published(bundles: Path, change: Any) -> None:
        if (workspace / "config.toml").exists():
            enter_change(outbox, config, bundles, change)
            send(outbox, config)

    yield published


@contextmanager
def tracked(config: RunConfig) -> Iterator[Recorder]:
    """Record the stages that run inside, and send them to MLflow at the end."""
    from pipelines.engine.errors import WorkspaceBusyError
    from pipelines.engine.workspace import bundles_dir
    from pipelines.tracking.recorder import Recorder
    from pipelines.tracking.tracking import open_outbox, sync_outbox

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
