"""``recsys join``: this machine's share of the trainings of a run on another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.engine.console import log


def join(
    workspace: Annotated[
        Path, typer.Argument(help="Folder of the run, at the path where the first machine has it.")
    ],
    machine: Annotated[
        int,
        typer.Option(
            min=1,
            envvar=["NODE_RANK", "SLURM_NODEID"],
            help="Number of this machine, from 1; the one of the command is 0.",
        ),
    ] = 1,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="End after so long without a training; 0 never does.")
    ] = 0.0,
) -> None:
    """Take part in the trainings of a run that another machine works on.

    The other one runs [bold]recsys run --engine torchrun[/] with [bold]torchrun.machines[/] and
    [bold]torchrun.address[/] set. Both see the workspace and the data at the same paths. It waits
    for trainings until it is interrupted.

    [bold]Example[/]

      recsys join /shared/runs/shop --machine 1
    """
    from pipelines.engine.machines import join as take_part

    log.print(f"machine {machine} waits for trainings of {workspace.absolute()}")
    take_part(workspace.absolute(), machine, log.print, idle_seconds)
