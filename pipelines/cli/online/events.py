"""Commands on what a server collected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsJson
from pipelines.engine.console import log, out

app = typer.Typer(no_args_is_help=True)


@app.callback()
def events() -> None:
    """What visitors did and what they were shown, from the online store of a server."""


@app.command()
def export(
    store: Annotated[
        str, typer.Option(help="sqlite:FOLDER or redis://HOST:PORT/0, as of recsys serve.")
    ],
    to: Annotated[Path, typer.Option("--out", help="Folder of the Parquet files.")],
    records: Annotated[
        bool, typer.Option("--records", help="Whole records of lists too, for recsys parity.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write new events and served lists of an online store into Parquet files by day.

    OUT/date=*/ has the events, OUT/requests/date=*/ the served lists with a row an item. Each
    export adds what is new; whoever was forgotten since is taken out of earlier files. A training
    run reads them by one line: online_events = "OUT" in [data], or the address of the store, which
    is then exported by the run itself.

    [bold]Examples[/]

      recsys events export --store sqlite:runs/shop/online --out runs/shop/online_events

      recsys run --preset movielens_100k --set data.online_events=sqlite:runs/shop/online
    """
    from pipelines.inputs.opened_store import export_store

    found = export_store(store, to, records=records)
    written = {name: one for name, one in found._asdict().items() if one is not None}
    if as_json:
        out.print_json(json.dumps({name: vars(one) for name, one in written.items()}))
        return
    names = {"events": "events", "requests": "served lists", "records": "records of lists"}
    for what, report in ((names[name], one) for name, one in written.items()):
        removed = f"; {report.removed:,} rows of forgotten users removed" if report.removed else ""
        log.print(
            f"{report.new:,} new {what}; {report.rows:,} rows in {report.parts:,} files{removed}",
            markup=False,
            soft_wrap=True,
        )
