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
    show: Open = False,
) -> None:
    """Show which bundle to release and why: runs, comparisons, releases, semantic IDs.

    Reads workspaces and bundles as they are; nothing leaves the machine.

    [bold]Examples[/]

      recsys dashboard --open
    """
    from pipelines.dashboard.context import Context
    from pipelines.dashboard.pages import PAGES
    from pipelines.dashboard.web.access import AccessRules
    from pipelines.dashboard.web.app import serve
    from pipelines.dashboard.workspaces.stores import Stores

    stores = Stores(find_places(root or [], bundles or []), watch=True)
    known = key or None if key_file is None else read_key(key_file)
    access = AccessRules(host=host, key=known, public=public, names=tuple(name or ()))
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    print_lines(f"dashboard: {address} (Ctrl-C ends it)", note=True)
    if show:
        import webbrowser

        webbrowser.open(address)
    serve(Context(stores=stores), PAGES, access, port)


def find_places(roots: list[Path], bundles: list[Path]) -> Places:
    """Check the folders of runs and bundles."""
    from pipelines.dashboard.workspaces.stores import Places

    for given in [*roots, *bundles]:
        if not given.is_dir():
            raise ValueError(f"{given} is not a folder; name one that holds workspaces or bundles")
    return Places(roots=roots or [ROOT], bundles=bundles)


def read_key(file: Path) -> str:
    """Read a file's key."""
    if not file.is_file():
        raise ValueError(f"{file} is no file; --key-file names one that holds the key")
    key = file.read_text(encoding="utf-8").strip()
    if not key or "\n" in key:
        raise ValueError(f"{file} must hold the key on one line; recsys keys add prints a good one")
    return key
