"""Find the workspace and the bundles of a run that is named on the command line."""

from __future__ import annotations

from pathlib import Path


def find_workspace(run: Path) -> Path:
    """Return the workspace of a run."""
    from pipelines.presets.resolve import resolve

    workspace = resolve(run).workspace if run.is_file() or run.suffix == ".toml" else run
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

    if run.is_file() or run.suffix == ".toml":
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
