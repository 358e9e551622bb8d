"""The commands ``recsys release`` and ``items``: decide, explain decisions, add items, domains."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import (
    Assignments,
    BundleRun,
    Quiet,
    Run,
    find_bundle,
    find_bundles,
    run_config,
)
from pipelines.cli.output import print_lines, print_table
from pipelines.cli.registry import send

if TYPE_CHECKING:
    from pipelines.engine.decisions import Decision, Written
    from pipelines.publishing.sync_items import Synced

app = typer.Typer(no_args_is_help=True)
items_app = typer.Typer(no_args_is_help=True)
Version = Annotated[str | None, typer.Argument(help="Version of a bundle; by default the latest.")]


@app.command()
def promote(
    run: Run,
    version: Version = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take a refused version too; the decision log says so.")
    ] = False,
) -> None:
    """Make a bundle the champion: serve it, and move its alias in the model registry.

    Without a version the challenger is promoted. recsys release rollback undoes it.

    [bold]Example[/] recsys release promote runs/shop 3f2a9c01b7de
    """
    from pipelines.publishing.promotion import promote as make_champion

    move_champion("promote", run, partial(make_champion, version=version, force=force))


@app.command()
def rollback(run: Run) -> None:
    """Go back to the champion before this one; once more goes back one further.

    [bold]Example[/] recsys release rollback runs/shop
    """
    from pipelines.publishing.promotion import rollback as go_back

    move_champion("rollback", run, go_back)


def move_champion(command: str, run: Path, move: Callable[..., Decision]) -> None:
    """Move the alias, print the new champion, and send it to the registry if it can be reached."""
    from pipelines.operations.state import move_alias

    bundles, workspace = find_bundles(run)
    change, config, outbox = move_alias(command, bundles, move, workspace)
    before = f" (before: {change.champion})" if change.champion else ""
    print_lines(f"champion is {change.version}{before}")
    send(outbox, config)


def read_verified(run: Path) -> tuple[Path, list[Written], list[str]]:
    """Read a run's decisions and their faults."""
    from pipelines.engine.decisions import KEY, LOG, read_decisions, signing_key

    bundles, _ = find_bundles(run)
    if not (bundles / LOG).exists():
        raise ValueError(
            f"nothing was released or refused in {run}; name a run or its folder of bundles"
        )
    key = signing_key()
    found, faults = read_decisions(bundles, key)
    if key is None and found:
        print_lines(f"note: {KEY} is not set, so no signature is verified", note=True, style="dim")
    return bundles, found, faults


def report_faults(faults: list[str]) -> None:
    """Print altered and missing decisions, and end with code 3 if there are any."""
    print_lines(*faults, note=True, style="red")
    raise typer.Exit(3 if faults else 0)


@app.command()
def history(run: Run) -> None:
    """List every decision: releases, refusals, promotions, rollbacks.

    Decisions are verified; one that was altered or taken away ends the command with code 3.

    [bold]Example[/] recsys release history runs/shop
    """
    _, found, faults = read_verified(run)
    rows = []
    # The fault of an altered line is printed below the table.
    for decision in (one.decision for one in found if not one.fault):
        forced = " (forced)" if decision.forced else ""
        rows.append((decision.time, decision.challenger, decision.outcome + forced, decision.why))
    print_table(("time", "version", "outcome", "why"), rows, fixed=("time", "version"))
    report_faults(faults)


@app.command()
def explain(run: Run, version: Version = None) -> None:
    """Explain why a version was released or refused, and what to do next.

    [bold]Example[/] recsys release explain runs/shop 3f2a9c01b7de
    """
    from pipelines.engine.decisions import describe_decision

    bundles, found, faults = read_verified(run)
    whole = [one for one in found if not one.fault]
    chosen = [one for one in whole if version in (None, one.decision.challenger)]
    if not chosen:
        print_lines(*faults, note=True, style="red")
        known = ", ".join(sorted({one.decision.challenger for one in whole})) or "none"
        raise ValueError(
            f"there is no decision on {version!r} in {bundles}; there are decisions on: {known}"
        )
    print_lines(*describe_decision(chosen[-1], bundles))
    report_faults(faults)


@app.command("append")
def append_items(
    run: BundleRun,
    items: Annotated[
        Path, typer.Argument(help="CSV, Parquet or JSONL with the catalogue's columns.")
    ],
) -> None:
    """Append new catalogue items to a released bundle, without training.

    Their vectors and semantic IDs come from text and categories, so that they can be recommended
    at once; a running server loads them. The next run trains on their events.

    [bold]Example[/] recsys release append runs/shop new-items.csv
    """
    from pipelines.publishing.append_items import append

    made, number, change = append(items, find_bundle(run))
    print_lines(f"{number:,} new items in {made}")
    enter_registry(made.parent, change)


@app.command()
def adapt(
    run: Run,
    domain: Annotated[
        str, typer.Option("--domain", "-d", help="Domain, as items or events name it.")
    ],
    assignments: Assignments = None,
    publish: Annotated[bool, typer.Option(help="Serve it once it is registered.")] = True,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Remove the domain's adapter and serve the base.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train an adapter of the released model for a domain, and register it.

    It is refused (exit code 3) if it does not improve the domain on held-out users, or harms a
    protected slice. A running server loads it; only requests with that
    context.domain change.

    [bold]Examples[/]

      recsys release adapt shop.toml --domain books

      recsys release adapt shop.toml --domain books --withdraw
    """
    settings = run_config(run, assignments=assignments)
    if withdraw:
        from pipelines.engine.workspace import bundles_dir, publishing
        from serving.bundle.adapters import withdraw_adapter

        with publishing(bundles_dir(settings)):
            withdraw_adapter(bundles_dir(settings), domain)
        print_lines(f"{domain}: the base alone answers again")
        return
    from pipelines.adapters.adapt import adapt as train_adapter

    found = train_adapter(settings, domain, publish=publish, show_progress=not quiet)
    rows = []
    for one in found.judgement.verdicts:
        numbers = (None if value is None else f"{value:.4f}" for value in (one.value, one.bound))
        rows.append((one.name, *numbers, "yes" if one.passed else "no", one.reason))
    print_table(("check", ">value", ">bound", "passed", "of"), rows)
    fitted = f"{domain}: {found.num_labels:,} labels, {found.num_steps} steps, "
    fitted += f"{found.share:.1%} of the base's parameters, {found.seconds:.1f} s"
    state = "served" if publish else "registered, not served"
    print_lines(fitted, f"{state}: {found.directory}", note=True)


def enter_registry(bundles: Path, change: Decision) -> None:
    """Enter a moved alias into the registry of the run that made the bundles, if one did."""
    from pipelines.operations.state import read_tracking
    from pipelines.tracking.outbox import open_outbox

    workspace = bundles.absolute().parent
    if (workspace / "config.toml").exists():
        config, outbox = read_tracking(workspace), open_outbox(workspace)
        outbox.enter_change(config, bundles, change)
        send(outbox, config)


@items_app.command()
def sync(
    run: BundleRun,
    source: Annotated[
        str, typer.Argument(help="CSV, Parquet or JSONL, or a database's table or query.")
    ],
    every: Annotated[
        float | None, typer.Option(help="Read it again after this number of seconds.", min=0.5)
    ] = None,
) -> None:
    """Bring prices, stock and other numbers of items to running servers, without a release.

    Filters and rules of every server that reads these bundles use the new values within seconds.

    [bold]Examples[/]

      recsys items sync runs/shop stock.csv

      recsys items sync runs/shop 'postgresql://ann@db.shop/shop#products' --every 3
    """
    from pipelines.publishing.sync_items import sync as sync_items
    from serving.bundle.load import load_bundle

    bundle = load_bundle(find_bundle(run))
    while True:
        try:
            print_lines(describe_sync(sync_items(source, bundle)))
        except ValueError as error:
            if every is None:
                raise
            print_lines(f"nothing was changed: {error}", note=True, style="yellow")
        if every is None:
            return
        time.sleep(every)
        if (place := find_bundle(run).resolve()).name != f"bundle-{bundle.version}":
            bundle = load_bundle(place, bundle)


def describe_sync(found: Synced) -> str:
    """Format the counts of a sync."""
    changed = ", ".join(f"{name} {number:,}" for name, number in found.changed.items())
    line = f"{found.num_items:,} items read; changed values: {changed}"
    if found.num_unknown:
        line += f"; {found.num_unknown:,} items are not in the bundle"
    if found.left_out:
        line += f"; texts stay as released: {', '.join(found.left_out)}"
    return line
