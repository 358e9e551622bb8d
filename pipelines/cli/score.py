"""The command that makes lists for many users at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli.options import (
    AsJson,
    BundleRun,
    Category,
    ListLength,
    Out,
    Profile,
    Quiet,
    ServingConfig,
    Where,
    Workers,
    find_bundle,
)
from pipelines.cli.output import print_json, print_lines
from pipelines.engine.console import log

FILES = (".csv", ".tsv", ".txt", ".parquet", ".jsonl", ".ndjson", ".gz")

Users = Annotated[
    str | None,
    typer.Option(help="User ids (1,2,3) or a file with a column user_id; by default all."),
]
Items = Annotated[str | None, typer.Option(help="Item ids or a file with a column item_id.")]
ActiveSince = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="Only users with an event since a day (UTC)."),
]


def score(
    run: BundleRun,
    out: Out = None,
    k: ListLength = 20,
    surface: Annotated[
        str, typer.Option(help="home, or another for users; related (similar) for items.")
    ] = "home",
    serving_config: ServingConfig = None,
    users: Users = None,
    items: Items = None,
    active_since: ActiveSince = None,
    categories: Category = None,
    where: Where = None,
    profile: Annotated[
        Profile, typer.Option(help="full also queries the generative model.")
    ] = "fast",
    workers: Workers = None,
    max_failed_share: Annotated[
        float, typer.Option(help="Share of lists that may fail; the others are kept.")
    ] = 0.01,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a list for every user, as the API would, into Parquet files.

    The files are in OUT/lists, one for each part of the users; pl.read_parquet("OUT/lists") reads
    them all. OUT is lists/<bundle>-<surface> next to the bundles by default. A command that was
    killed is resumed by the same command.

    [bold]Examples[/]

      recsys score runs/shop --k 10 --active-since 2026-10-01

      recsys score runs/shop --users newsletter.csv --category Comedy --out newsletter

      recsys score runs/shop --surface related --k 10
    """
    from pipelines.scoring.job import ScoreRequest
    from pipelines.scoring.score import score as make_lists
    from serving.settings import usable_cpus

    if sum(one is not None for one in (users, items, active_since)) > 1:
        raise ValueError(
            "--users, --items and --active-since each name what lists are for; keep one of them"
        )
    path = find_bundle(run).resolve()
    keys, name = None, "all" if active_since is None else f"active since {active_since:%Y-%m-%d}"
    since = int(active_since.replace(tzinfo=UTC).timestamp()) if active_since else None
    if named := users or items:
        keys, name = read_ids(named, "item_id" if items else "user_id")
    filters = {"categories": categories, "where": where}
    request = ScoreRequest(
        bundle=str(path),
        out=str(out or path.parent.parent / "lists" / f"{path.name}-{surface}"),
        surface=surface,
        config=None if serving_config is None else str(serving_config.absolute()),
        k=k,
        profile=profile,
        filter={name: value for name, value in filters.items() if value},
        active_since=since,
        keys_are="item_id" if items else "user_id" if users or active_since else None,
        keys_name=name,
        workers=workers or usable_cpus(),
        max_failed_share=max_failed_share,
    )
    with progress(show=not quiet) as report:
        found = make_lists(request, report, keys=keys)
    if as_json:
        print_json({"out": request.out, **found})
    else:
        print_lines(describe_lists(request.out, found), note=True)


def read_ids(named: str, column: str) -> tuple[list[str], str]:
    """Read the ids of a file, or those on the command line, and how they are called."""
    if not named.endswith(FILES):
        return named.split(","), "named"
    from features.events import as_text
    from features.reading.scan import read_whole
    from features.schema import SourceConfig

    path = Path(named)
    table = read_whole(path, SourceConfig(paths=(path,)), (column,))
    ids = table.select(as_text(column, table.schema[column])).drop_nulls()
    return ids[column].to_list(), path.name


@contextmanager
def progress(*, show: bool) -> Iterator[Any]:
    """Show how many lists are made; print which worker was replaced."""
    from rich.progress import Progress

    with Progress(console=log, disable=not show, transient=True) as bar:
        task = bar.add_task("load", total=None)

        def report(message: Mapping[str, Any]) -> None:
            if "lists_in_all" in message:
                bar.update(task, description="lists", total=message["lists_in_all"])
            elif "lists" in message:
                bar.advance(task, message["lists"])
            elif "lost" in message:
                print_lines(
                    f"a worker was killed; others make its {message['lost']} parts", note=True
                )

        yield report


def describe_lists(folder: str, found: Mapping[str, Any]) -> str:
    """Describe in one line: lists, rows, folder, parts, moment, failures, degraded lists."""
    kept = found["parts"] - found["parts_made"]
    notes = "".join(f"; {count:,} degraded: {code}" for code, count in found["degraded"].items())
    moment = datetime.fromtimestamp(found["unix_time"], UTC)
    return (
        f"{found['num_lists']:,} lists of {found['rows']:,} rows in {folder}/lists; "
        f"{found['parts_made']} of {found['parts']} parts made in {found['seconds']:,.1f} s, "
        f"{kept} were there; as of {moment:%Y-%m-%d %H:%M:%S} UTC; {found['num_failed']:,} failed, "
        f"listed in {folder}/failed{notes}"
    )
