"""The command that makes lists for many users at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipelines.cli.bundles import DEMO_BUNDLE, BundlePath, Profile, check_bundle
from pipelines.cli.options import AsJson, Quiet
from pipelines.engine.console import log, out

FILES = (".csv", ".tsv", ".txt", ".parquet", ".jsonl", ".ndjson", ".gz")


OutFolder = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of the lists; lists/<bundle>-<surface> beside the bundles."),
]
Surface = Annotated[
    str, typer.Option(help="home, or another for users; related (similar) for items.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="File of surfaces, rules and experiments, as of recsys serve."),
]
Users = Annotated[
    str | None,
    typer.Option(help="A file with a column user_id, or ids: 1,2,3; by default all users."),
]
Items = Annotated[
    str | None, typer.Option(help="The same of items (item_id), for --surface related.")
]
ActiveSince = Annotated[
    str | None, typer.Option(help="Only users with an event since 2026-01-31, or a unix second.")
]
UnixTime = Annotated[
    int | None, typer.Option(help="Time of all requests; just after the newest event, or now.")
]
Categories = Annotated[
    list[str] | None,
    typer.Option("--category", help="Only items in this category (repeatable)."),
]
Where = Annotated[
    str | None, typer.Option(help="Only items with \"price < 50 and category in ['a', 'b']\".")
]
Engine = Annotated[
    Literal["local", "ray"], typer.Option(help="ray makes the parts on a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(help="host:port of the Ray cluster; RAY_ADDRESS, or one started here."),
]
MaxFailedShare = Annotated[
    float, typer.Option(help="Share of lists that may fail; the others are kept.")
]


def score(
    bundle: BundlePath = DEMO_BUNDLE,
    to: OutFolder = None,
    k: Annotated[int, typer.Option(help="Length of each list.")] = 20,
    surface: Surface = "home",
    config: Config = None,
    users: Users = None,
    items: Items = None,
    active_since: ActiveSince = None,
    unix_time: UnixTime = None,
    categories: Categories = None,
    where: Where = None,
    profile: Annotated[
        Profile, typer.Option(help="full also queries the generative model.")
    ] = "fast",
    workers: Annotated[int | None, typer.Option(help="Processes; one for each CPU.")] = None,
    engine: Engine = "local",
    address: Address = None,
    max_failed_share: MaxFailedShare = 0.01,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a list for every user, as the API would, into Parquet files.

    The files lie in OUT/lists, one for each part of the users; pl.read_parquet("OUT/lists") reads
    them all. A run that was killed goes on where it was: the same command makes what is missing.

    [bold]Examples[/]

      recsys score

      recsys score --bundle runs/shop/bundles/current --k 10 --active-since 2026-10-01

      recsys score --users newsletter.csv --category Comedy --out newsletter

      recsys score --surface related --k 10

      recsys score --engine ray --address 10.0.0.1:6379
    """
    from pipelines.scoring.request import ScoreRequest
    from pipelines.scoring.run import score as make_lists
    from serving.settings import usable_cpus

    if sum(one is not None for one in (users, items, active_since)) > 1:
        raise ValueError(
            "--users, --items and --active-since each say whom lists are for; keep one of them"
        )
    path = check_bundle(bundle).resolve()
    keys, name = None, "all" if active_since is None else f"active since {active_since}"
    if named := users or items:
        keys, name = ids_of(named, "item_id" if items else "user_id")
    wanted: dict[str, object] = {"categories": categories, "where": where}
    chosen = {name: value for name, value in wanted.items() if value}
    request = ScoreRequest(
        engine=engine,
        address=address,
        bundle=str(path),
        out=str(to or path.parent.parent / "lists" / f"{path.name}-{surface}"),
        surface=surface,
        config=None if config is None else str(config.absolute()),
        k=k,
        profile=profile,
        filter=chosen,
        unix_time=unix_time,
        active_since=None if active_since is None else unix_seconds(active_since),
        keys_are="item_id" if items else "user_id" if users or active_since else None,
        keys_name=name,
        workers=workers or usable_cpus(),
        max_failed_share=max_failed_share,
    )
    with progress(show=not quiet) as report:
        found = make_lists(request, report, keys=keys)
    if as_json:
        out.print_json(json.dumps({"out": request.out, **found}))
        return
    log.print(log_line(request.out, found), markup=False, soft_wrap=True)


def unix_seconds(text: str) -> int:
    """Read a date, a time with date (UTC without a zone) or unix seconds.

    Raises:
        ValueError: It is none of them.
    """
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--active-since must be a date like 2026-01-31 or unix seconds, got {text!r}"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def ids_of(named: str, column: str) -> tuple[list[str], str]:
    """Read the ids of a file, or those on the command line, and how they are called.

    Raises:
        ValueError: There is no such file, or it has no such column.
    """
    if not named.endswith(FILES):
        return named.split(","), "named"
    from features.events import as_text
    from features.scan import read_whole
    from features.schema import SourceConfig

    path = Path(named)
    table = read_whole(path, SourceConfig(paths=(path,)), (column,))
    ids = table.select(as_text(column, table.schema[column])).drop_nulls()
    return ids[column].to_list(), path.name


@contextmanager
def progress(*, show: bool) -> Iterator[Any]:
    """Show lists made of all, and what is left; say which worker was replaced."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=log, disable=not show, transient=True) as bar:
        task = bar.add_task("load", total=None)

        def report(message: Mapping[str, Any]) -> None:
            if "lists_in_all" in message:
                total = message["lists_in_all"]
                bar.update(task, description="lists", total=total)
            elif "lists" in message:
                bar.advance(task, message["lists"])
            elif "lost" in message:
                log.print(
                    f"a worker ended by {message['how']} in part {message['lost']}; another makes "
                    "that part again",
                    style="yellow",
                )

        yield report


def log_line(folder: str, found: Mapping[str, Any]) -> str:
    """One line: lists, rows, failures, what was degraded, rate and where they lie."""
    made, seconds = found["lists_made"], found["seconds"]
    rate = f", {made / seconds:,.0f}/s" if made and seconds else ""
    kept = found["parts"] - found["parts_made"]
    notes = [f"{count:,} {code}" for code, count in found["degraded"].items()]
    moment = datetime.fromtimestamp(found["unix_time"], UTC)
    return "; ".join(
        [
            f"{found['num_lists']:,} lists of {found['rows']:,} rows in {folder}/lists",
            f"{found['parts_made']} of {found['parts']} parts made in {seconds:,.1f} s{rate}"
            + (f", {kept} were there" if kept else ""),
            f"as of {moment:%Y-%m-%d %H:%M:%S} UTC",
            f"{found['num_failed']:,} failed"
            + (f", see {folder}/failed" if found["num_failed"] else ""),
            *([f"degraded: {', '.join(notes)}"] if notes else []),
        ]
    )
