"""Where a workspace's bundles lie."""

from __future__ import annotations

from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.workspace import bundles_dir
from pipelines.presets.resolve import resolve

CONFIG = "config.toml"


def config_of(workspace: Path) -> RunConfig | None:
    """Read the configuration of a workspace's last run; None before one, or of another version."""
    path = workspace / CONFIG
    if not path.exists():
        return None
    try:
        return resolve(path, workspace=workspace)
    except ValueError:
        return None


def bundles_of(workspace: Path) -> Path:
    """Name the folder of a workspace's bundles; by default beside its artefacts."""
    config = config_of(workspace)
    return workspace / "bundles" if config is None else bundles_dir(config)
