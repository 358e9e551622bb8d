"""Commands that answer from a bundle: ``serve``, ``recommend``, ``export``, ``mcp``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.cli.options import (
    DEMO,
    AsJson,
    BundleRun,
    Category,
    ListLength,
    OptionalRun,
    Profile,
    ServingConfig,
    Store,
    Where,
    Workers,
    find_bundle,
    find_served,
)
from pipelines.cli.output import print_json, print_lines, print_table


def serve(
    run: OptionalRun = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8000).")] = None,
    workers: Workers = None,
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
    expose_users: Annotated[
        bool | None, typer.Option(help="Show users' histories to everyone who reaches the server.")
    ] = None,
    allow_admin: Annotated[
        bool | None,
        typer.Option("--allow-admin", help="Without keys, let anyone hide items, forget users."),
    ] = None,
    store: Store = None,
    serving_config: ServingConfig = None,
) -> None:
    """Answer requests over HTTP; a newly published bundle is loaded while serving.

    RUN is a run's folder, its folder of bundles, or one bundle, which is then served whatever is
    published; the demo's by default. Every option has a variable, RECSYS_HOST and so on; an option
    wins.

    [bold]Examples[/]

      recsys serve --expose-users --allow-admin

      recsys serve runs/shop --port 8080 --profile full

      curl -s --json '{"user_id": "1", "k": 5}' localhost:8000/v1/recommend
    """
    from serving.server.serve import serve as run_server
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
        "config": serving_config,
    }
    if run is not None or "RECSYS_BUNDLES" not in os.environ:
        given["bundles"], given["bundle"] = find_served(run or DEMO)
    settings = Settings.from_environment(None, **given)
    if settings.expose_users:
        warning = "users and their histories are shown to everyone who can reach this server"
        print_lines(warning, note=True)
    place = f"http://{settings.host}:{settings.port}/"
    print_lines(f"loading the bundle; {place} answers in some seconds", note=True)
    run_server(settings)


def recommend(
    run: BundleRun = DEMO,
    user: Annotated[str | None, typer.Option(help="User id.")] = None,
    session: Annotated[
        str | None, typer.Option(help="Item ids of this visit, oldest first: a,b,c.")
    ] = None,
    item: Annotated[str | None, typer.Option(help="Item id, for similar items.")] = None,
    category: Category = None,
    where: Where = None,
    k: ListLength = 10,
    explain: Annotated[bool, typer.Option(help="Show the reason for each item.")] = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items for a user, a session or an item, in this process.

    [bold]Examples[/]

      recsys recommend --user 42

      recsys recommend runs/shop --session 50,172,181 --k 5

      recsys recommend --item 50 --category Sci-Fi

      recsys recommend --user 42 --where "release_year >= 1990 and category != 'Drama'"
    """
    from serving.recommend import Recommender
    from serving.schemas import read_request, to_json

    request = read_request(
        surface="related" if item else "home",
        user_id=user,
        session=session.split(",") if session else None,
        item_id=item,
        k=k,
        filter={"categories": category or None, "where": where},
        explain=explain,
    )
    recommender = Recommender.load(find_bundle(run))
    reply = recommender.answer(request)
    if as_json:
        print_json(json.loads(to_json(reply)))
        return
    why = ("why",) if any(one.reason for one in reply.items) else ()
    rows = [
        (one.item_id, one.title, one.source, *([one.reason] if why else ()), f"{one.score:.4f}")
        for one in reply.items
    ]
    print_table(("item", "title", "source", *why, ">score"), rows)
    for one in reply.degraded:
        what = f": {user!r} is not in the bundle" if one.code == "unknown_user" else ""
        print_lines(f"note: {one}{what}", note=True)


def export(
    run: BundleRun,
    target: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; a new one.")],
    kind: Annotated[
        Literal["onnx"], typer.Option("--format", help="Format of the files.")
    ] = "onnx",
) -> None:
    """Export query encoders, ranker and item vectors, for programs without torch.

    What they say of a hundred users is compared with the bundle's models before the folder exists.

    [bold]Example[/] recsys export runs/shop --format onnx --out exported
    """
    from recsys.retrieval.export_onnx import export_bundle
    from serving.bundle.load import load_bundle

    for name, worst in export_bundle(load_bundle(find_bundle(run)), target).items():
        print_lines(f"{name}: differs from the bundle's by at most {worst:.1e}")
    print_lines(f"wrote {target} ({kind}); examples/onnx_lists.py reads it (docs/python.md)")


def mcp(
    url: Annotated[str, typer.Option(help="The server to call.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(envvar="RECSYS_API_KEY", help="Key of recsys keys add.")
    ] = None,
    allow_events: Annotated[
        bool, typer.Option("--allow-events", help="Offer a tool that stores events too.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a call may take.", min=0.1)] = 10.0,
) -> None:
    """Offer a running server to agents as tools (Model Context Protocol); read-only by default.

    Tools: recommend, search, similar, explain, why_not and, where allowed, send_event. Keys and
    limits are the server's. The agent's program starts this command and talks to it over stdio.

    [bold]Examples[/]

      recsys mcp

      recsys mcp --url https://recommendations.shop.example
    """
    from pipelines.cli.agent_server import DoorOptions, serve_stdio

    options = DoorOptions(url=url, key=key, allow_events=allow_events, timeout=timeout)
    serve_stdio(options)
