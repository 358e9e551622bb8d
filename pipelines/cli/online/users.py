"""The command ``recsys users``: people in all that a run reads and writes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson, on_a_run
from pipelines.engine.console import out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.operations.forget import ForgetReport

app = typer.Typer(no_args_is_help=True)


@app.callback()
def users() -> None:
    """People in the files of a run and in the online store of its server."""


@app.command()
@on_a_run
def forget(
    config: RunConfig,
    user_ids: Annotated[list[str], typer.Argument(metavar="USER_ID...", help="Whom to forget.")],
    store: Annotated[
        str | None,
        typer.Option(help="Online store; that of data.online_events, or beside the bundles."),
    ] = None,
    rewrite_files: Annotated[
        bool, typer.Option("--rewrite-files", help="Take their rows out of your raw files too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Forget users: in the store, in exports and partitions, and in every later run.

    Their ids go to a list as hashes; every later preparation leaves out what they did until now and
    counts it in its report. Your raw files stay as they are, named with the rows that are theirs,
    unless --rewrite-files is given. What was made before is named too: the next run replaces it,
    published bundles stay until they are removed.

    [bold]Examples[/]

      recsys users forget 4711 --config shop.toml

      recsys users forget 4711 4712 --workspace runs/shop --rewrite-files
    """
    from pipelines.operations.forget import forget_users

    report = forget_users(
        config, user_ids, int(1_000 * time.time()), store=store, rewrite_files=rewrite_files
    )
    if as_json:
        out.print_json(json.dumps(asdict(report)))
        return
    for line in sentences(report, len(user_ids)):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def sentences(report: ForgetReport, num_users: int) -> list[str]:
    """Say what was removed, and what still holds them."""
    people = "1 user" if num_users == 1 else f"{num_users:,} users"
    lines = [f"{people} forgotten; {report.list_path} keeps them out of every later run"]
    if report.store is None:
        lines.append(
            "no online store was found, so a server answers with what its bundle knows of them "
            "until the next release; name the server's store with --store"
        )
    lines += [f"removed {rows:,} rows: {where}" for where, rows in report.removed.items() if rows]
    for one in report.held:
        rows = "" if one.rows is None else f" {one.rows:,} rows:"
        lines.append(f"still held:{rows} {one.path} ({one.note})")
    return lines
