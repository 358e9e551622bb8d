"""``recsys report``: the evaluation report of a run, rebuilt where something changed."""

from __future__ import annotations

import shutil
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import DEMO, Open
from pipelines.engine.console import out

WorkspacePath = Annotated[Path, typer.Argument(help="Workspace of a run that has run evaluate.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Copy the HTML file to this path.")]


def report(workspace: WorkspacePath = DEMO, copy: Out = None, show: Open = False) -> None:
    """Write a run's evaluation report as one self-contained HTML file and print its path.

    [bold]Example[/] recsys report runs/shop --out report.html
    """
    from pipelines.cli.tracking import tracked
    from pipelines.engine.runner import pick_stages, run_stages
    from pipelines.presets.resolve import resolve
    from pipelines.stages.list import STAGES
    from pipelines.stages.report import WITHOUT_ANALYSIS, report_path

    settings = workspace / "config.toml"
    if not settings.exists():
        raise ValueError(
            f"{workspace.absolute()} is not the workspace of a run: it has no config.toml. Name "
            "one, or make one with recsys run --config shop.toml"
        )
    config = resolve(settings, workspace=workspace)
    with tracked(config) as recorder:
        run_stages(pick_stages(STAGES, ["report"], None), config, recorder=recorder)
    path = report_path(workspace)
    if not path.exists():
        raise ValueError(WITHOUT_ANALYSIS)
    if copy is not None:
        shutil.copyfile(path, copy)
        path = copy
    out.print(str(path), markup=False, soft_wrap=True)
    if show:
        webbrowser.open(path.absolute().as_uri())
