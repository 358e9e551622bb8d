"""The command ``recsys dashboard``: pages about runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Host, Open, Port
from pipelines.cli.output import print_lines

if TYPE_CHECKING:
    from pipelines.dashboard.workspaces.stores import Places

ROOT = Path("runs")


def dashboard(
    root: Annotated[
        list[Path] | None,
        typer.Option("--root", "-r", help="Folder of workspaces, or one; runs (repeatable)."),
    ] = None,
    bundles: Annotated[
        list[Path] | None, typer.Option(help="Further folder of bundles (repeatable).")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key that readers on other machines give, on one line."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="RECSYS_DASHBOARD_KEY", hidden=True, help="The key itself.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Everyone who reaches it may read, without a key.")
    ] = False,
    name: Annotated[
        list[str] | None, typer.Option(help="Host name by which others reach it (repeatable).")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write a run into this HTML file."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Run to export: its key or its folder; the newest."),
    ] = None,
    show: Open = False,
) -> None:
    """Show which bundle to release and why: runs, comparisons, releases, semantic IDs.

    Reads workspaces and bundles as they are; nothing leaves the machine. With
    --export it writes one file that opens anywhere, without a server.

    [bold]Examples[/]

      recsys dashboard --open

      recsys dashboard --root runs --root /srv/runs

      recsys dashboard --export shop.html --run runs/shop
    """
    from pipelines.dashboard.context import Context
    from pipelines.dashboard.pages import PAGES
    from pipelines.dashboard.workspaces.stores import Stores

    if run and export is None:
        raise ValueError("--run says what --export writes; a served dashboard shows all runs")
    stores = Stores(find_places(root, bundles, run), watch=export is None)
    known = key or None if key_file is None else read_key(key_file)
    context = Context(stores=stores, exported=export is not None)
    if export is not None:
        from pipelines.dashboard.web.export import find_run, write

        left_out = write(context, PAGES, find_run(stores, run), export)
        lines = [f"  without {one}" for one in left_out]
        print_lines(f"{export}: {export.stat().st_size / 1e6:.1f} MB", *lines, note=True)
        return
    from pipelines.dashboard.web.access import AccessRules
    from pipelines.dashboard.web.app import serve

    access = AccessRules(host=host, key=known, public=public, names=tuple(name or ()))
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    print_lines(f"dashboard: {address} (Ctrl-C ends it)", note=True)
    if show:
        import webbrowser

        webbrowser.open(address)
    serve(context, PAGES, access, port)


def find_places(root: list[Path] | None, bundles: list[Path] | None, run: str | None) -> Places:
    """Find the folders of runs: a run that is exported by its folder needs no root."""
    from pipelines.dashboard.workspaces.stores import Places

    for given in [*(root or ()), *(bundles or ())]:
        if not given.is_dir():
            raise ValueError(f"{given} is not a folder; name one that holds workspaces or bundles")
    folders = [Path(run)] if run is not None and Path(run).is_dir() else []
    if root is None and not folders:
        root = [ROOT]
    return Places(roots=[*(root or ()), *folders], bundles=bundles or ())


def read_key(file: Path) -> str:
    """Read a file's key."""
    if not file.is_file():
        raise ValueError(f"{file} is no file; --key-file names one that holds the key")
    key = file.read_text(encoding="utf-8").strip()
    if not key or "\n" in key:
        raise ValueError(f"{file} must hold the key on one line; recsys keys add prints a good one")
    return key
