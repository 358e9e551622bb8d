"""The command ``recsys config``: check a server's file, upgrade a run's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.engine.console import log, out

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Check a server's file of surfaces, rules and experiments; upgrade a run's file."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The configuration, such as serving.toml.")],
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", "-b", help="Also whether this bundle has what it names."),
    ] = None,
) -> None:
    """Say what a configuration does and what is wrong with it.

    [bold]Examples[/]

      recsys config check serving.toml

      recsys config check serving.toml --bundle runs/shop/bundles/current
    """
    from serving.configuration.check import described, unfit
    from serving.configuration.file import read_configuration

    configuration = read_configuration(file)
    for sentence in described(configuration):
        out.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for sentence in configuration.warnings:
        log.print(f"warning: {sentence}", markup=False, soft_wrap=True)
    if bundle is None:
        return
    from pipelines.cli.bundles import check_bundle
    from serving.bundle.load import load_bundle
    from serving.settings import ServingOptions
    from serving.sources import sources_of

    loaded = load_bundle(check_bundle(bundle))
    sources = sources_of(loaded, ServingOptions(profile="full"))
    faults = list(unfit(configuration, loaded, sources))
    if faults:
        raise ValueError("\n".join(f"{file}: {fault}" for fault in faults))
    out.print(f"bundle {loaded.version} has all that it names", markup=False, soft_wrap=True)


@app.command()
def upgrade(
    file: Annotated[Path, typer.Argument(help="A run's configuration, such as shop.toml.")],
    write: Annotated[bool, typer.Option("--write", help="Replace the file.")] = False,
) -> None:
    """Write a run's file of an earlier version under the present names of its keys.

    The new text is printed, or replaces the file with --write. Comments and order stay. What was
    renamed or left out is said line by line; a file that needs no change stays as it is.

    [bold]Examples[/]

      recsys config upgrade shop.toml

      recsys config upgrade shop.toml --write
    """
    from pipelines.config.toml import read_toml
    from pipelines.config.upgrade import upgrade_text
    from recsys.data.durable import write_durably

    read_toml(file)
    text, changes = upgrade_text(file.read_text(encoding="utf-8-sig"), str(file))
    for change in changes:
        log.print(change, markup=False, highlight=False, soft_wrap=True)
    if not write:
        typer.echo(text, nl=False)
    elif changes:
        write_durably(file, text)
    log.print(f"{file}: {len(changes)} changes", markup=False, soft_wrap=True)
