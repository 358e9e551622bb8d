"""The command ``doctor``: check this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.options import AsJson
from pipelines.cli.output import print_json, print_lines, print_table


def doctor(
    as_json: AsJson = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="Limit of each library's check.")] = 60.0,
) -> None:
    """Check that everything is installed and works, and print the commands that fix it.

    Exits with 3 if something that the platform needs is broken.

    [bold]Example[/] recsys doctor
    """
    from pipelines.doctor.doctor import fixes, run_checks

    results = run_checks(seconds)
    failed = [one.name for one in results if one.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [one._asdict() for one in results]})
    else:
        columns = ("", "check", "found", "wanted")
        rows = ((one.status, one.name, one.found, one.wanted) for one in results)
        print_table(columns, rows, fixed=columns[:2])
        print_lines(*fixes(results))
    raise typer.Exit(3 if failed else 0)
