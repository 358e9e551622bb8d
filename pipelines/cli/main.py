"""The command ``recsys``. Heavy imports wait until a command needs them, so --help is instant."""

from __future__ import annotations

import os
import traceback
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from pipelines.engine.console import EXIT_CODES as CODES
from pipelines.engine.console import find_exit_code, format_error, log

EXIT_CODES = """Exit codes: 0 success, 2 invalid command, configuration or data, 3 a check refused,
5 an alarm was raised, 70 training diverged, 71 out of memory, 72 a rank or a cluster was lost, 74
disk error, 75 in use by another command. Set RECSYS_TRACEBACK=1 to see an error's traceback."""

COMMANDS = {
    "Start": "run.demo run.run machine.plan machine.doctor",
    "Serve": "serve.serve serve.recommend score.score serve.export serve.mcp",
    "Keep fresh": "ingest.ingest run.update daily.monitor daily.status daily.gc",
    "Evaluate": (
        "evaluate.pages.dashboard evaluate.compare.compare evaluate.studies.backtest "
        "evaluate.studies.tune "
        "evaluate.experiments.experiments evaluate.experiments.ope evaluate.parity.parity"
    ),
}
"""Functions below ``pipelines.cli`` that are commands, by panel of ``--help``."""
GROUPS = {
    "data": ("Start", "data.app", "Data sets, a file for your tables, exports, forgetting."),
    "keys": ("Serve", "server_files.keys_app", "Keys of a server's clients: add, remove."),
    "config": ("Serve", "server_files.config_app", "Check a server's file."),
    "release": ("Keep fresh", "release.app", "Decisions on bundles, new items, domain adapters."),
    "registry": ("Keep fresh", "registry.app", "Bundles and runs in MLflow: send and pull."),
    "items": ("Keep fresh", "release.items_app", "Stock and prices between releases."),
    "events": ("Serve", "events.app", "Events of a Kafka topic into the online store."),
}
"""Panel, application below ``pipelines.cli`` and help of each group of commands."""


class PlainErrors(TyperGroup):
    """The commands; expected failures are printed as a sentence, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except tuple(CODES) as error:
            if isinstance(error, BrokenPipeError):
                raise
            if os.environ.get("RECSYS_TRACEBACK"):
                log.print(escape(traceback.format_exc()), soft_wrap=True)
            message = escape(format_error(error))
            log.print(f"[bold red]error:[/] {message}", soft_wrap=True)
            raise typer.Exit(find_exit_code(error)) from None


app = typer.Typer(
    cls=PlainErrors,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Recommender platform: raw events in, a served and evaluated recommendation out.",
    epilog=EXIT_CODES,
)


def find_part(place: str) -> Any:
    """Import a function or an application below ``pipelines.cli``."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"pipelines.cli.{module}"), name)


for panel, names in COMMANDS.items():
    for name in names.split():
        app.command(rich_help_panel=panel)(find_part(name))
for name, (panel, place, help_text) in GROUPS.items():
    app.add_typer(find_part(place), name=name, help=help_text, rich_help_panel=panel)


def print_version(wanted: bool) -> None:
    """Print the installed version and end."""
    if wanted:
        typer.echo(f"recsys {version('recsys-platform')}")
        raise typer.Exit


@app.callback()
def whole_program(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Read the options before a command."""


if __name__ == "__main__":
    app()
