"""The command ``recsys adapt``: a domain's adapter on the released base."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from pipelines.cli.options import Assignments, Quiet, WorkspacePath
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from serving.bundle.manifest import Verdict


def adapt(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file of the run.")],
    domain: Annotated[str, typer.Option("--domain", "-d", help="As items or events name it.")],
    workspace: WorkspacePath = None,
    assignments: Assignments = None,
    publish: Annotated[bool, typer.Option(help="Serve it once it is registered.")] = True,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Remove the domain's adapter and serve the base.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train an adapter of the released model for a domain, and register it.

    It is refused (exit code 3) if it does not improve the domain on held-out users, or harms a
    protected slice or another domain. A running server loads it; only requests with that
    context.domain change.

    [bold]Examples[/]

      recsys adapt --config shop.toml --domain books

      recsys adapt -c shop.toml -d books --withdraw
    """
    from pipelines.presets.resolve import resolve

    settings = resolve(config, assignments=assignments or [], workspace=workspace)
    if withdraw:
        from pipelines.engine.bundles_lock import publishing
        from pipelines.engine.workspace import bundles_dir
        from serving.bundle.adapters import withdraw_adapter

        with publishing(bundles_dir(settings)):
            withdraw_adapter(bundles_dir(settings), domain)
        out.print(f"{domain}: the base alone answers again")
        return
    from pipelines.adapters.adapt import adapt as run_adapt

    found = run_adapt(settings, domain, publish=publish, show_progress=not quiet)
    out.print(verdict_table(found.judgement.verdicts))
    log.print(
        f"{domain}: {found.num_labels:,} labels, {found.num_steps} steps, "
        f"{found.share:.1%} of the base's parameters, {found.seconds:.1f} s",
        soft_wrap=True,
    )
    state = "served" if publish else "registered, not served"
    log.print(f"{state}: {found.directory}", markup=False, soft_wrap=True)


def verdict_table(verdicts: list[Verdict]) -> Table:
    """Lay out the verdicts of the harm gate."""
    values = (Column(name, justify="right") for name in ("value", "bound"))
    table = Table("check", *values, "passed", "of", box=box.SIMPLE_HEAD)
    for one in verdicts:
        cells = ["" if number is None else f"{number:.4f}" for number in (one.value, one.bound)]
        row = (one.name, *cells, "yes" if one.passed else "no", one.reason)
        table.add_row(*(Text(cell) for cell in row))
    return table
