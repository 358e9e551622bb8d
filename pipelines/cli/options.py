"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.presets.resolve import ConfigSources

DEMO = Path("runs/movielens-100k")
StageNames = tuple[list[str], str | None, list[str]]
"""Stages to run alone, the last one, and those to run though nothing changed."""
WORKSPACE = "workspace="
RUN_HELP = "The run: its TOML file, or its folder."
Run = Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP)]
OptionalRun = Annotated[Path | None, typer.Argument(metavar="[RUN]", help=RUN_HELP)]
BundleRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder or TOML file, or a bundle's folder.")
]
Preset = Annotated[str | None, typer.Option(help="Preset, instead of the one that RUN names.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as seed=1 (repeatable)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="File or folder to write to.")]
ServingConfig = Annotated[
    Path | None, typer.Option("--serving-config", help="File of surfaces, rules and experiments.")
]
Store = Annotated[
    str | None,
    typer.Option(help="Online store: sqlite:FOLDER or redis://HOST:PORT/0; the run's by default."),
]
Until = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="Leave partitions of later days as they are."),
]
Budget = Annotated[str | None, typer.Option(help="Time limit, such as 90s, 10m or 1h.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on.")]
Profile = Literal["fast", "full"]
ListLength = Annotated[int, typer.Option("--k", help="Length of each list.")]
Category = Annotated[
    list[str] | None,
    typer.Option("--category", help="List only items in this category (repeatable)."),
]
Where = Annotated[
    str | None, typer.Option(help='List only items for which this is true, such as "price < 50".')
]
Workers = Annotated[int | None, typer.Option(help="Processes that make lists; one for each CPU.")]


def config_sources(
    run: Path | None,
    preset: str | None = None,
    assignments: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> ConfigSources:
    """Collect the sources of a run's configuration; a folder has that of its last run."""
    from pipelines.config.toml import parse_assignment
    from pipelines.presets.resolve import ConfigSources

    if run is None and preset is None:
        raise ValueError(
            "name a run: shop.toml for your own data (recsys data init makes one), the folder of "
            "an earlier run, or --preset movielens_100k"
        )
    workspace = None if run is None or is_toml(run) else run
    path = run if workspace is None else workspace / "config.toml"
    # The place of a run is no setting of it, and has no part in messages about settings.
    places = [one for one in assignments or () if one.startswith(WORKSPACE)]
    if places:
        workspace = Path(str(parse_assignment(places[-1])["workspace"]))
    return ConfigSources(
        path=None if path is not None and preset is not None and path != run else path,
        preset=preset,
        assignments=[one for one in assignments or () if one not in places],
        values=dict(values or {}),
        workspace=workspace,
    )


def run_config(
    run: Path | None, preset: str | None = None, assignments: Sequence[str] | None = None
) -> RunConfig:
    """Resolve the configuration of a run."""
    return config_sources(run, preset, assignments).latest()


def is_toml(run: Path) -> bool:
    """Return True if a run is named by its file."""
    return run.is_file() or run.suffix == ".toml"


def find_workspace(run: Path) -> Path:
    """Return the workspace of a run."""
    from pipelines.presets.resolve import resolve

    workspace = resolve(run).workspace if is_toml(run) else run
    if not workspace.is_dir():
        raise ValueError(
            f"there is no workspace {workspace.absolute()}. Name the folder or the TOML file of a "
            "run, or make one with recsys run shop.toml"
        )
    return workspace


def find_bundles(run: Path) -> tuple[Path, Path]:
    """Return the folder of a run's bundles, and its workspace."""
    from pipelines.engine.workspace import bundles_dir
    from pipelines.operations.state import bundles_of
    from pipelines.presets.resolve import resolve

    if is_toml(run):
        config = resolve(run)
        return bundles_dir(config), config.workspace
    if (run / "config.toml").is_file() or (run / "bundles").is_dir():
        return bundles_of(run), run
    return run, run.absolute().parent


def find_bundle(run: Path) -> Path:
    """Return the bundle that a run serves, or the one that is named."""
    bundles, _ = find_bundles(run)
    for candidate in (run, bundles / "current"):
        if (candidate / "manifest.json").is_file() and candidate.name != "release":
            return candidate
    raise ValueError(
        f"no bundle at {run}; make one with recsys demo or recsys run shop.toml, then name that "
        "run, its bundles or one of them"
    )


def find_served(run: Path) -> tuple[Path, str | None]:
    """Return the folder of bundles that a server reads, and the bundle if one is named itself."""
    found = find_bundle(run).absolute()
    return found.parent, None if found.name == "current" else found.name
