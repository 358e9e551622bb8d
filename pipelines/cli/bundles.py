"""Commands on a released bundle: serve it, query it, append items to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from pipelines.cli.options import DEMO, AsJson
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from serving.schemas import Reply, Request

BundlePath = Annotated[
    Path,
    typer.Option("--bundle", "--bundles", "-b", help="A bundle, its folder or a run's workspace."),
]
Profile = Literal["fast", "full"]
DEMO_BUNDLE = DEMO / "bundles/current"


def check_bundle(path: Path) -> Path:
    """Accept a bundle, the folder of bundles, or a run's workspace.

    Raises:
        ValueError: There is no bundle; the message says what to run.
    """
    for candidate in (path, path / "current", path / "bundles" / "current"):
        if (candidate / "manifest.json").is_file() and candidate.name != "release":
            return candidate
    raise ValueError(
        f"no bundle at {path}; make one with recsys demo or recsys run --config shop.toml, "
        "then name its bundles/current with --bundle"
    )


def served_bundle(path: Path) -> tuple[Path, str | None]:
    """Say which folder of bundles a server reads, and which bundle of it.

    A workspace, a folder of bundles and its ``current`` are followed: the second part is None. Any
    other name, such as ``bundles/bundle-v2``, is served as it is named, whatever is published.

    Raises:
        ValueError: There is no bundle; the message says what to run.
    """
    found = check_bundle(path).absolute()
    if found.name == "current":
        return found.parent, None
    return found.parent, found.name


FOLLOW_SECONDS = 2.0
StoreAddress = Annotated[
    str | None,
    typer.Option(
        help="Online store of events: sqlite:FOLDER, redis://HOST:PORT/0 or none; by default "
        "the folder online beside the bundles' folder.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="File of surfaces, rules and experiments (recsys config check).", show_default=False
    ),
]
ExposeUsers = Annotated[
    bool | None,
    typer.Option(help="Show every user's history to everyone who can reach the server."),
]
AllowAdmin = Annotated[
    bool | None,
    typer.Option("--allow-admin", help="Without keys, let anyone hide items, forget users."),
]


def serve(
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            "--bundles",
            "-b",
            help="A bundle, its folder or a run's workspace; the demo's.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (127.0.0.1).", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on (8000).", show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that make lists; one for each CPU.")
    ] = None,
    profile: Annotated[
        Profile | None, typer.Option(help="fast (the default), or full: also the generative model.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File of clients' keys, see recsys keys add.")
    ] = None,
    allow_anonymous: Annotated[
        bool | None,
        typer.Option("--allow-anonymous", help="Without keys, listen for other machines too."),
    ] = None,
    expose_users: ExposeUsers = None,
    allow_admin: AllowAdmin = None,
    store: StoreAddress = None,
    config: ConfigFile = None,
) -> None:
    """Answer requests over HTTP; a newly published bundle is loaded while serving.

    A bundle that is named itself (bundles/bundle-v2) is served whatever is published. Every option
    has a variable, RECSYS_HOST and so on; what is given here wins.

    [bold]Examples[/]

      recsys serve --expose-users --allow-admin

      recsys serve --bundle runs/shop/bundles/current --port 8080 --profile full

      curl -s --json '{"user_id": "1", "k": 5}' localhost:8000/v1/recommend
    """
    from serving.server.run import serve as run_server
    from serving.settings import Settings

    given: dict[str, object] = {
        "host": host,
        "port": port,
        "profile": profile,
        "workers": workers,
        "keys": keys,
        "allow_anonymous": allow_anonymous,
        "expose_users": expose_users,
        "allow_admin": allow_admin,
        "store": store,
        "config": config,
    }
    if bundle is not None or "RECSYS_BUNDLES" not in os.environ:
        given["bundles"], given["bundle"] = served_bundle(bundle or DEMO_BUNDLE)
    settings = Settings.from_environment(None, **given)
    if settings.expose_users:
        log.print("users and their histories are shown to everyone who can reach this server")
    run_server(settings)


def recommend(
    bundle: BundlePath = DEMO_BUNDLE,
    user: Annotated[str | None, typer.Option(help="User id.")] = None,
    session: Annotated[
        str | None, typer.Option(help="Item ids of this visit, oldest first: a,b,c.")
    ] = None,
    item: Annotated[str | None, typer.Option(help="Item id, for similar items.")] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Only items in this category (repeatable).")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Only items for which this is true, see docs/serving.md.")
    ] = None,
    k: Annotated[int, typer.Option(help="Length of the list.")] = 10,
    explain: Annotated[bool, typer.Option(help="Show the reason for each item.")] = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items for a user, a session or an item, in this process.

    [bold]Examples[/]

      recsys recommend --user 42

      recsys recommend --session 50,172,181 --k 5

      recsys recommend --item 50 --category Sci-Fi

      recsys recommend --user 42 --where "release_year >= 1990 and category != 'Drama'"
    """
    from serving.recommend import Recommender
    from serving.schemas import to_json

    request = checked_request(
        surface="similar" if item else "home",
        user_id=user,
        session=session.split(",") if session else None,
        item_id=item,
        k=k,
        filter={"categories": category or None, "where": where},
        explain=explain,
    )
    recommender = Recommender.load(check_bundle(bundle))
    reply = recommender.answer(request)
    if as_json:
        out.print_json(to_json(reply).decode())
        return
    loaded = recommender.bundle
    if user and (row := loaded.users.row_of(user)):
        latest = loaded.users.history(row)[-5:][::-1]
        titles = [loaded.catalogue.display_texts[int(one)] for one in latest]
        out.print(Text(f"user {user} lately: {'; '.join(titles)}", style="dim"))
    out.print(reply_table(reply))
    for note in reply.degraded:
        log.print(f"note: {note}", style="yellow", markup=False)


def checked_request(**fields: object) -> Request:
    """Build a request.

    Raises:
        ValueError: Names the field that the request schema refuses, and what is allowed.
    """
    from pydantic import ValidationError

    from serving.schemas import Request

    try:
        return Request.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults]
        raise ValueError("; ".join(line.removeprefix(": ") for line in lines)) from None


def reply_table(reply: Reply) -> Table:
    """Tabulate a reply with titles."""
    explained = any(one.reason for one in reply.items)
    place, score = (Column(name, justify="right") for name in ("", "score"))
    names = ("item", "title", "source", *(["why"] if explained else []))
    table = Table(place, *names, score, box=box.SIMPLE_HEAD)
    for number, one in enumerate(reply.items, start=1):
        reason = [Text(one.reason or "")] if explained else []
        table.add_row(
            str(number),
            Text(one.item_id),
            Text(one.title or ""),
            one.source,
            *reason,
            f"{one.score:.4f}",
        )
    return table


def append_items(
    items: Annotated[
        str,
        typer.Argument(
            help="CSV, Parquet or JSONL with the catalogue's columns, or the store "
            "(sqlite:FOLDER, redis://HOST:PORT/0) that has them from POST /v1/items."
        ),
    ],
    bundle: BundlePath = DEMO_BUNDLE,
    publish: Annotated[bool, typer.Option(help="Publish the delta at once.")] = True,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on, and append what a store gets from now on.")
    ] = False,
) -> None:
    """Append new catalogue items to a released bundle, without training.

    Their vectors and semantic IDs come from text and categories, so that they can be recommended
    at once; a running server loads them. The next run trains on their events.

    [bold]Examples[/]

      recsys append-items new-items.csv --bundle runs/shop/bundles/current

      recsys append-items sqlite:runs/shop/online --bundle runs/shop/bundles/current --follow
    """
    from pipelines.cli.tracking import recording_champions
    from pipelines.publishing.append_items import append
    from serving.online.opening import is_store

    if follow and not is_store(items):
        raise ValueError(f"--follow follows an online store, got {items}; name sqlite:FOLDER")
    directory = check_bundle(bundle)
    with recording_champions(directory.resolve().parent) as published:
        run = partial(append, items, directory, publish_it=publish, published=published)
        for made, number in followed(run) if follow else [run()]:
            out.print(f"{number:,} new items in {made}", soft_wrap=True)


def followed(append: Callable[[], tuple[Path, int]]) -> Iterator[tuple[Path, int]]:
    """Append whenever there is something new; print why it has to wait, once each time.

    Yields:
        What ``append`` returns.
    """
    from pipelines.engine.errors import WorkspaceBusyError
    from pipelines.inputs.opened_store import UnreadableStoreError
    from pipelines.publishing.append_items import MovedError, NothingNewError

    waiting = ""
    while True:
        try:
            yield append()
            waiting = ""
        except NothingNewError:
            waiting = ""
        except (MovedError, UnreadableStoreError, WorkspaceBusyError) as error:
            if str(error) != waiting:
                waiting = str(error)
                log.print(f"note: {waiting}", style="yellow", markup=False, soft_wrap=True)
        time.sleep(FOLLOW_SECONDS)
