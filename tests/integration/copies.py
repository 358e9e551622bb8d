"""Runs in copies of a finished shop."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from click.testing import Result

from pipelines.stages.list import STAGES

Recsys = Callable[..., Result]


def stages_before(name: str) -> list[str]:
    """List the stages that come before one."""
    names = [stage.name for stage in STAGES]
    return names[: names.index(name)]


def copied(shop: Path, folder: Path, stages: Iterable[str] | None = None) -> Path:
    """Copy the raw files and the finished stages, by default the workspace; return its path."""
    folder.mkdir(exist_ok=True)
    for path in shop.parent.iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    if stages is None:
        shutil.copytree(shop, folder / "run", symlinks=True)
    for name in stages or ():
        shutil.copytree(shop / name, folder / "run" / name)
    return folder / "run"


def options(name: str, values: Iterable[str]) -> list[str]:
    """Repeat an option for each value."""
    return [part for value in values for part in (name, value)]


def run(recsys: Recsys, workspace: Path, *more: object) -> Result:
    """Run the shop whose raw files lie beside a workspace."""
    return recsys(
        "run", workspace.parent / "shop.toml", "--set", f"workspace={workspace}", "-q", *more
    )


def run_well(recsys: Recsys, workspace: Path, *more: object) -> str:
    """Run it to a good end; return what it said on one line."""
    result = run(recsys, workspace, *more)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())
