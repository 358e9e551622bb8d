"""Commands around a run: tracking server, champion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import DEMO
from pipelines.engine.console import PlainErrors, log, out
from pipelines.engine.errors import WorkspaceBusyError

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
RegistryAddress = Annotated[
    str | None,
    typer.Option(
        "--registry",
        help="MLflow server (http://host:5000) or database; the workspace's.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(help="Name of the bundles in the registry (recsys).", show_default=False),
]


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


app = typer.Typer(cls=PlainErrors, no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def group() -> None:
    """Take the subcommands."""


@contextmanager
def tracked(config: RunConfig) -> Iterator[Recorder]:
    """Track the stages that run inside, and send them at the end."""
    from pipelines.tracking.tracking import outbox_of, sync_outbox

    if not config.tracking.enabled:
        yield recorder_of(config)
        return
    outbox = outbox_of(config.workspace)
    try:
        yield recorder_of(config)
    except WorkspaceBusyError:
        # Nothing was run: who holds the workspace sends.
        raise
    except Exception:
        sync_outbox(outbox, config.tracking)
        raise
    send(outbox, config.tracking)


def report_stage(outcome: StageOutcome) -> None:
    """Print a stage's log line."""
    style = "dim" if outcome.skipped else ""
    log.print(outcome.log_line(), style=style, soft_wrap=True)


@app.command("send")
def send_runs(
    workspace: Workspace = DEMO,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="How long to send, instead of tracking.sync_seconds.", show_default=False
        ),
    ] = None,
) -> None:
    """Send a workspace's waiting runs to MLflow, and bundles to their folder.

    [bold]Example[/] recsys tracking send --workspace runs/shop --seconds 3600
    """
    from pipelines.engine.history import recorded
    from pipelines.operations.aliases import tracking_of
    from pipelines.tracking.tracking import outbox_of, sync_outbox

    if not workspace.is_dir():
        raise ValueError(f"no workspace {workspace}; name one with --workspace")
    config = tracking_of(workspace)
    if seconds is not None:
        config = replace(config, sync_seconds=seconds)
    with recorded(workspace, "tracking send") as recording:
        result = sync_outbox(outbox_of(workspace), config)
        recording.reasons.append(result.log_line())
        out.print(result.log_line(), markup=False, soft_wrap=True)
        if result.waiting:
            raise typer.Exit(75)


def send(outbox: Outbox, config: TrackingConfig) -> None:
    """Send waiting runs; print what could not be sent."""
    from pipelines.tracking.tracking import sync_outbox

    result = sync_outbox(outbox, config)
    if result.waiting or result.refused:
        log.print(result.log_line(), style="yellow", markup=False, soft_wrap=True)


def change_champion(
    command: str, bundles: Path, move: Callable[..., AliasChange], workspace: Path | None = None
) -> None:
    """Move the alias, print the new champion, and send it to the registry if it can be reached."""
    from pipelines.operations.aliases import move_alias

    change, config, outbox = move_alias(command, bundles, move, workspace)
    before = f" (before: {change.previous})" if change.previous else ""
    out.print(f"champion is {change.version}{before}", markup=False, soft_wrap=True)
    send(outbox, config)


@contextmanager
def recording_champions(bundles: Path) -> Iterator[Callable[[Path, str], None]]:
    """Enter what is appended inside into the registry of a run's workspace.

    A folder of bundles that no run made, as on a machine that only serves, has no registry.
    """
    from pipelines.operations.aliases import tracking_of
    from pipelines.publishing.promotion import record_champion
    from pipelines.tracking.tracking import outbox_of

    workspace = bundles.absolute().parent
    config, outbox = tracking_of(workspace), outbox_of(workspace)
    if not config.enabled or not (workspace / "config.toml").exists():
        yield lambda bundles, version: None
        return

    def published(bundles: Path, version: str) -> None:
        record_champion(outbox, config.model, bundles, version, "append")
        send(outbox, config)

    yield published


def promote(
    version: Annotated[
        str | None, typer.Argument(help="Version of a bundle; the challenger by default.")
    ] = None,
    bundles: Annotated[
        Path | None,
        typer.Option(
            "--bundles", "-b", help="Folder of the bundles; the workspace's.", show_default=False
        ),
    ] = None,
    workspace: Workspace = DEMO,
    from_registry: Annotated[
        bool,
        typer.Option("--from-registry", help="Serve the bundle that the registry's alias names."),
    ] = False,
    if_reachable: Annotated[
        bool,
        typer.Option(
            "--if-reachable", help="With --from-registry: a registry that is gone is no error."
        ),
    ] = False,
    registry: RegistryAddress = None,
    model: ModelName = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also a version that was refused; that is written down."),
    ] = False,
) -> None:
    """Make a bundle the champion: serve it, and move its alias in the model registry.

    With --from-registry the other way round: the bundle that the alias champion names there is
    fetched, verified and served. [bold]recsys rollback[/] goes back to the champion before it.

    [bold]Examples[/]

      recsys promote 3f2a9c01b7de --bundles runs/shop/bundles

      recsys promote --from-registry --workspace runs/shop
    """
    from pipelines.operations.places import bundles_of

    folder = bundles or bundles_of(workspace)
    home = workspace if bundles is None else None
    if from_registry:
        if version is not None:
            raise ValueError(
                f"--from-registry serves what the alias names, and {version!r} was named as well; "
                "leave one out"
            )
        config, _ = registry_of(folder, registry, model, home)
        follow(folder, home, config, if_reachable=if_reachable)
        return
    if if_reachable or registry or model:
        raise ValueError("--if-reachable, --registry and --model are for --from-registry")
    from pipelines.publishing.promotion import promote as make_champion

    move = partial(make_champion, version=version, force=force)
    change_champion("promote", folder, move, home)


def registry_of(
    bundles: Path, uri: str | None, model: str | None, workspace: Path | None = None
) -> tuple[TrackingConfig, Outbox]:
    """Return the tracking configuration of a workspace, the folder above the bundles by default."""
    from pipelines.operations.aliases import tracking_of
    from pipelines.tracking.tracking import outbox_of

    workspace = workspace or bundles.absolute().parent
    config = tracking_of(workspace)
    config = replace(config, uri=uri or config.uri, model=model or config.model)
    return config, outbox_of(workspace)


def follow(
    bundles: Path, workspace: Path | None, config: TrackingConfig, *, if_reachable: bool
) -> None:
    """Serve what the registry's alias names, print what came of it, note it in the history."""
    from pipelines.engine.history import recorded
    from pipelines.publishing.from_registry import follow_registry
    from pipelines.publishing.promotion import served_version
    from pipelines.tracking.tracking import outbox_of
    from serving.bundle.copies import UnreachableError

    workspace = workspace or bundles.absolute().parent
    outbox = outbox_of(workspace)
    # A folder that no run made, as on a machine that only serves, has no history of commands.
    made = workspace if (workspace / "config.toml").exists() else None
    with recorded(made, "promote --from-registry") as recording:
        send(outbox, config)
        try:
            found = follow_registry(bundles, config=config, outbox=outbox)
        except UnreachableError as error:
            if not if_reachable:
                raise
            served = served_version(bundles)
            goes_on = f"{served} is still served" if served else "nothing is served"
            words = f"the registry cannot be reached, {goes_on}: {error}"
            recording.outcome = "nothing to do"
            recording.reasons.append(words)
            log.print(words, style="yellow", markup=False, soft_wrap=True)
            return
        recording.reasons.append(found.words)
        recording.details["champion"] = found.version
        if not found.moved:
            recording.outcome = "nothing to do"
        out.print(f"champion is {found.version}: {found.words}", markup=False, soft_wrap=True)
        send(outbox, config)


def rollback(bundles: Bundles = DEMO / "bundles") -> None:
    """Go back to the champion before this one; once more goes back one further.

    [bold]Example[/] recsys rollback --bundles runs/shop/bundles
    """
    from pipelines.publishing.promotion import rollback as go_back

    change_champion("rollback", bundles, go_back)
