"""The command ``recsys distil``: a small two-tower that learns from a larger model of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.cli.options import Quiet, on_a_run
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig


@on_a_run
def distil(
    config: RunConfig,
    teacher: Annotated[
        str, typer.Option(help="Model to learn from: sequence, ensemble or generative.")
    ] = "sequence",
    embedding_dim: Annotated[
        int | None, typer.Option(help="Width of the student; the run's two-tower's without.")
    ] = None,
    share: Annotated[
        float, typer.Option(help="Share of the loss against the teacher; the rest is labels.")
    ] = 0.5,
    temperature: Annotated[
        float, typer.Option(help="Softens the teacher's and the student's probabilities.")
    ] = 1.0,
    quiet: Quiet = False,
) -> None:
    """Distil a trained model of a finished run into a small two-tower.

    The student learns from the training labels and from the teacher's ranked lists. It is written
    to <workspace>/students/<teacher>, with its validation metrics beside the teacher's.

    [bold]Examples[/]

      recsys distil --config shop.toml --embedding-dim 64

      recsys distil -w runs/shop --teacher generative
    """
    from pipelines.training.distil import distil as run_distil
    from recsys.training.distillation import DistillationConfig

    settings = DistillationConfig(soft_share=share, temperature=temperature)
    found = run_distil(
        config, teacher, settings, embedding_dim=embedding_dim, show_progress=not quiet
    )
    names = list(found.metrics["student"])
    table = Table("validation", *names, box=box.SIMPLE_HEAD)
    for model, metrics in found.metrics.items():
        table.add_row(model, *(f"{metrics[name]:.4f}" for name in names))
    out.print(table)
    log.print(
        f"student of {found.num_parameters:,} parameters: {found.directory}",
        markup=False,
        soft_wrap=True,
    )
