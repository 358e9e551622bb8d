"""Run a card: get its data, prepare arrays, train and measure each seed, compare, write the page.

A card's folder:

    workspace/     the stages that prepare the arrays
    arrays/        what trains; may be carried to a machine with a GPU and no other package
    runs/          one folder an order and seed, and the ledger of looks at test
    results.*      the page
    bands.toml     the bands that these numbers would set, in the words of a card
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pipelines.engine.workspace import check_writable
from pipelines.presets.resolve import with_dataset
from recsys.fitting.spec import device_named
from tests.benchmarks.recipes.prepare import events_digest, prepare, recipe_of
from tests.benchmarks.recipes.prepared import DESCRIPTION, Prepared
from tests.benchmarks.recipes.run import RunSettings
from tests.benchmarks.recipes.time_to_split import cut_at_quantiles
from tests.benchmarks.reproduction.card import Card, read_published
from tests.benchmarks.reproduction.page import write_page
from tests.benchmarks.reproduction.ranking_run import run_once
from tests.benchmarks.reproduction.summary import OutOfBand, out_of_band, summary_of

ARRAYS, RUNS, WORKSPACE = "arrays", "runs", "workspace"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a call of the command will do."""

    name: str
    card: Card
    folder: Path
    seeds: tuple[int, ...]
    orders: tuple[str, ...]
    rows: tuple[str, ...]
    device: str = "auto"
    validation_only: bool = False

    def lines(self) -> list[str]:
        """Say it before it is done."""
        card, device = self.card, device_named(self.device)
        minutes = card.minutes.gpu if device.type == "cuda" else card.minutes.cpu
        share = len(self.seeds) * len(self.orders) / max(1, len(card.seeds) * len(card.orders))
        split = "validation alone" if self.validation_only else "validation and test"
        place = "a GPU" if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
        return [
            f"{card.title}: {card.data_set()}, preset {card.preset}",
            f"rows: {', '.join(self.rows)}",
            f"{len(self.seeds)} seeds ({', '.join(map(str, self.seeds))}) in the order "
            f"{' and '.join(self.orders)} of tied times, {split}",
            f"on {place}: about {minutes * share:.0f} minutes (expected numbers are from "
            f"{card.device})",
            f"everything goes to {self.folder}; what is there already is not run again",
        ]


def plan_of(
    name: str,
    card: Card,
    folder: Path,
    *,
    num_seeds: int | None,
    rows: Sequence[str],
    device: str,
    validation_only: bool,
) -> Plan:
    """Take a card's own choices where none are given.

    Raises:
        ValueError: Fewer than one seed, or a row that the card does not measure.
    """
    seeds = card.seeds
    if num_seeds is not None:
        if num_seeds < 1:
            raise ValueError(f"--seeds must be >= 1, got {num_seeds}")
        more = range(max(seeds, default=-1) + 1, max(seeds, default=-1) + 1 + num_seeds)
        seeds = (*seeds, *more)[:num_seeds]
    if unknown := sorted(set(rows) - set(card.rows)):
        raise ValueError(f"card {name} has no rows {unknown}; it has {', '.join(card.rows)}")
    return Plan(
        name=name,
        card=card,
        folder=folder,
        seeds=seeds,
        orders=card.orders,
        rows=tuple(rows) or card.rows,
        device=device,
        validation_only=validation_only,
    )


def check_data(digest: str, card: Card, name: str) -> None:
    """Refuse other data than the card's numbers are of.

    Raises:
        ValueError: Names both digests.
    """
    if digest != card.data_digest:
        raise ValueError(
            f"the events of {card.data_set()} have digest {digest}, card {name} is for "
            f"{card.data_digest}: numbers on other data cannot be compared. Take the files that "
            "the card was made from (recsys data list), or make a card of your own"
        )


def arrays_of(plan: Plan, *, show_progress: bool) -> Prepared:
    """Read the card's arrays, or prepare them; data and settings are checked in either case.

    Raises:
        ValueError: Other data than the card's.
    """
    folder = plan.folder / ARRAYS
    config = plan.card.config(plan.folder / WORKSPACE)
    if (folder / DESCRIPTION).exists():
        prepared = Prepared.load(folder)
    else:
        check_writable(plan.folder, "the card's folder", "--folder")
        fetched = with_dataset(config)
        # Before the minutes that preparing takes.
        check_data(events_digest(fetched.data.event_paths()[0]), plan.card, plan.name)
        recipe = recipe_of(config, plan.rows, plan.card.sources())
        prepared = prepare(plan.card.data_set(), config, recipe, show_progress=show_progress)
        orders = {order: prepared.order(order) for order in plan.card.orders}
        asks_last = plan.card.protocol == "time_to_split"
        if asks_last:
            orders = {order: cut_at_quantiles(events) for order, events in orders.items()}
        replace(prepared, orders=orders, asks_last=asks_last).save(folder)
        # Read back: content is carried as float16, and every machine trains on the same.
        prepared = Prepared.load(folder)
    check_data(prepared.data_digest, plan.card, plan.name)
    # Settings may have changed since; arrays do not depend on them.
    return replace(prepared, recipe=recipe_of(config, plan.rows, plan.card.sources()))


def run_plan(
    plan: Plan,
    prepared: Prepared,
    *,
    show_progress: bool,
    finished: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run every order and seed that is not there yet."""
    results = []
    for order in plan.orders:
        for seed in plan.seeds:
            settings = RunSettings(
                order=order,
                seed=seed,
                splits=("validation",) if plan.validation_only else ("validation", "test"),
                device=plan.device,
                why=f"card {plan.name}",
                shows_progress=show_progress,
            )
            results.append(run_once(prepared, plan.folder / RUNS, settings))
            finished(results[-1])
    return results


def reproduce(
    plan: Plan, *, show_progress: bool, finished: Callable[[dict[str, Any]], None]
) -> tuple[Path, list[OutOfBand]]:
    """Do all of it; return the page and what is out of band."""
    prepared = arrays_of(plan, show_progress=show_progress)
    results = run_plan(plan, prepared, show_progress=show_progress, finished=finished)
    summary = summary_of(plan.name, plan.card, results)
    wrong = out_of_band(plan.card, summary)
    return write_page(plan.folder, plan.card, summary, read_published(), wrong), wrong
