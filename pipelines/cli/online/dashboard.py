"""``recsys dashboard``: all runs in a browser, or a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Open
from pipelines.engine.console import log

if TYPE_CHECKING:
    from pipelines.dashboard.context import Context
    from pipelines.dashboard.workspaces.stores import Places

ROOT = Path("runs")
Roots = Annotated[
    list[Path] | None,
    typer.Option(
        "--root", "-r", help="Folder of workspaces, or one (repeatable); runs.", show_default=False
    ),
]
Bundles = Annotated[
    list[Path] | None,
    typer.Option(help="Folder of bundles beside those of the workspaces (repeatable)."),
]
KeyFile = Annotated[
    Path | None, typer.Option(help="File with the key for promote and rollback, on one line.")
]
Key = Annotated[
    str | None, typer.Option(envvar="RECSYS_DASHBOARD_KEY", hidden=True, help="The key itself.")
]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="Host name by which others reach it (repeatable)."),
]


def dashboard(
    root: Roots = None,
    bundles: Bundles = None,
    server: Annotated[
        str | None, typer.Option(help="API whose metrics are shown, http://127.0.0.1:8000.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8100,
    key_file: KeyFile = None,
    key: Key = None,
    public: Annotated[
        bool, typer.Option("--public", help="Everyone who reaches it may read, without a key.")
    ] = False,
    name: Names = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Instead: write runs into this HTML file, or a file each into this folder."
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help="Run to export: its key or its folder (repeatable); the newest."),
    ] = None,
    show: Open = False,
) -> None:
    """Show which bundle to release and why: runs, comparisons, replay, releases, serving.

    Reads workspaces and bundles as they are; nothing leaves the machine. With
    --export it writes one file that opens anywhere, without a server.

    [bold]Examples[/]

      recsys dashboard --open

      recsys dashboard --root runs --root /srv/runs --key-file key.txt

      recsys dashboard --export shop.html --run runs/shop
    """
    if run and export is None:
        raise ValueError("--run says what --export writes; a served dashboard shows all runs")
    places = _places(root, bundles, run)
    context = _context(places, server, _key(key_file, key), exported=export is not None)
    if export is not None:
        _export(context, export, run or [])
        return
    from pipelines.dashboard.pages.list import PAGES
    from pipelines.dashboard.web.access import Access
    from pipelines.dashboard.web.run import serve

    access = Access(host=host, key=context.key, public=public, names=tuple(name or ()))
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    log.print(f"dashboard: {address} (Ctrl-C ends it)", markup=False, soft_wrap=True)
    if show:
        import webbrowser

        webbrowser.open(address)
    serve(context, PAGES, access, port)


def _places(
    root: list[Path] | None,
    bundles: list[Path] | None,
    run: list[str] | None,
) -> Places:
    """Say where runs are looked for: a run that is exported by its folder needs no root."""
    from pipelines.dashboard.workspaces.stores import Places

    for given in [*(root or ()), *(bundles or ())]:
        if not given.is_dir():
            raise ValueError(f"{given} is not a folder; name one that holds workspaces or bundles")
    folders = [Path(one) for one in run or () if Path(one).is_dir()]
    if root is None and not (folders and len(folders) == len(run or ())):
        root = [ROOT]
    return Places(roots=[*(root or ()), *folders], bundles=bundles or ())


def _context(places: Places, server: str | None, key: str | None, *, exported: bool) -> Context:
    from pipelines.dashboard.context import Context
    from pipelines.dashboard.workspaces.stores import Stores

    stores = Stores(places, watch=not exported)
    return Context(stores=stores, server=server, key=key, exported=exported)


def _export(context: Context, path: Path, wanted: list[str]) -> None:
    """Write one file about runs, or a file a run where no HTML file is named."""
    from pipelines.dashboard.pages.list import PAGES
    from pipelines.dashboard.web.export import find_runs, write

    runs = find_runs(context.stores, wanted)
    if path.suffix.lower() in {".html", ".htm"}:
        files = {path: runs}
    else:
        files = {path / f"{run.name.replace('/', '-')}-{run.key}.html": [run] for run in runs}
    for file, of in files.items():
        left_out = write(context, PAGES, of, file)
        size = file.stat().st_size / 1e6
        log.print(f"{file}: {size:.1f} MB", markup=False, soft_wrap=True)
        for one in left_out:
            log.print(f"  without {one}", markup=False, soft_wrap=True)


def _key(file: Path | None, given: str | None) -> str | None:
    """Read the key.

    Raises:
        ValueError: The file has none.
    """
    if file is None:
        return given or None
    if not file.is_file():
        raise ValueError(f"{file} is no file; --key-file names one that holds the key")
    key = file.read_text(encoding="utf-8").strip()
    if not key or "\n" in key:
        raise ValueError(f"{file} must hold the key on one line; recsys keys add prints a good one")
    return key
