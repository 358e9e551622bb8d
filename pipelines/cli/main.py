"""The command ``recsys``. Heavy imports wait until a command needs them, so --help is instant."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from pipelines.engine.console import PlainErrors

EXIT_CODES = """Exit codes: 0 success, 2 invalid command, configuration or data, 3 a check refused,
5 an alarm was raised, 70 training diverged, 71 out of memory, 72 a rank or a cluster was lost, 74
disk error, 75 in use by another command. Set RECSYS_TRACEBACK=1 to see an error's traceback."""

GROUPS = {
    "data": ("data", "Data sets: list, fetch, describe, configure."),
    "ids": ("semantic_ids", "Semantic IDs: train, append, compare."),
    "config": ("online.control", "A server's surfaces, rules and experiments: check."),
    "keys": ("online.keys", "Keys of a server's clients: add, list, remove."),
    "events": ("online.events", "What a server collected: export it for training."),
    "users": ("online.users", "People in a run and its server: forget them."),
    "tracking": ("tracking", "Runs in MLflow: send those that wait."),
    "release": ("scheduled.release", "Decisions on bundles: list, explain, promote."),
}
"""Module below ``pipelines.cli`` and help of each group of commands."""
COMMANDS = (
    "cli.adapters.adapt",
    "cli.bundles.serve",
    "cli.bundles.recommend",
    "cli.online.mcp.mcp",
    "cli.bundles.append_items",
    "cli.score.score",
    "cli.offline.backtest.backtest",
    "cli.offline.tune.tune",
    "cli.offline.judge.judge",
    "cli.scheduled.monitor.monitor",
    "cli.scheduled.ingest.ingest",
    "cli.scheduled.status.status",
    "cli.scheduled.gc.gc",
    "cli.scheduled.update.update",
    "cli.scheduled.parity.parity",
    "cli.offline.compare.compare",
    "cli.offline.compare.ledger",
    "cli.online.dashboard.dashboard",
    "doctor.doctor.doctor",
    "cli.plan.plan",
    "cli.online.experiments.experiments",
    "cli.scheduled.ope.ope",
    "cli.tracking.promote",
    "cli.tracking.rollback",
    "cli.scheduled.registry.fetch_bundle",
    "cli.reports.report",
    "cli.run.run",
    "cli.run.stages",
    "cli.run.demo",
)
"""The other commands below ``pipelines``, in the order of ``--help``."""

app = typer.Typer(
    cls=PlainErrors,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Recommender platform: raw events in, a served and evaluated recommendation out.",
    epilog=EXIT_CODES,
)
for group, (module, help_text) in GROUPS.items():
    app.add_typer(import_module(f"pipelines.cli.{module}").app, name=group, help=help_text)
for command in COMMANDS:
    module, _, function = command.rpartition(".")
    app.command()(getattr(import_module(f"pipelines.{module}"), function))


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
    """Take the options that stand before a command."""


if __name__ == "__main__":
    app()
