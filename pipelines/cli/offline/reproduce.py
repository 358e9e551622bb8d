"""``recsys reproduce``: a table of results run again; ``recsys scale``: what size and data give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pipelines.engine.console import log, out
from pipelines.engine.errors import RefusedError

Number = TypeVar("Number", int, float)
Ladder = Annotated[str, typer.Argument(help="Card whose data and sequence model are taken.")]
CardName = Annotated[
    str | None, typer.Argument(help="beauty, sports, toys, movielens-1m, ...; or a card's file.")
]
Seeds = Annotated[int | None, typer.Option(help="How many; the card's own without.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda.")]
Rows = Annotated[str, typer.Option(help="Only these, with commas.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
Prepare = Annotated[
    Path | None,
    typer.Option(help="Write the arrays there, for python -m recsys.reproduction, and stop."),
]
Folder = Annotated[Path | None, typer.Option(help="runs/reproduce/<card> without.")]
ValidationOnly = Annotated[
    bool, typer.Option("--validation-only", help="Never look at the test split.")
]


def reproduce(
    card: CardName = None,
    seeds: Seeds = None,
    device: Device = "auto",
    rows: Rows = "",
    dry_run: DryRun = False,
    prepare: Prepare = None,
    folder: Folder = None,
    validation_only: ValidationOnly = False,
) -> None:
    """Reproduce a table of results, next to the published numbers; fail where it differs.

    Says first what it will do and how long that takes. What is finished is not run again, and
    each seed has a folder of its own. Without a card: list them.

    [bold]Examples[/]

      recsys reproduce beauty

      recsys reproduce beauty --seeds 1 --rows item_to_item,sequence,blend_fast --device cpu

      recsys reproduce beauty --prepare arrays/beauty
    """
    from pipelines.reproduction.cards.card import card_names, read_card
    from pipelines.reproduction.run import arrays_of, plan_of
    from pipelines.reproduction.run import reproduce as run_card

    if card is None:
        for name in card_names():
            out.print(f"{name:<22} {read_card(name).title}", soft_wrap=True)
        return
    name = Path(card).stem
    chosen = [row.strip() for row in rows.split(",") if row.strip()]
    plan = plan_of(
        name,
        read_card(card),
        folder or Path("runs/reproduce") / name,
        num_seeds=seeds,
        rows=chosen,
        device=device,
        validation_only=validation_only,
    )
    for line in plan.lines():
        log.print(line, soft_wrap=True, markup=False)
    if dry_run:
        return
    if prepare is not None:
        arrays_of(plan, show_progress=log.is_terminal).save(prepare)
        out.print(f"arrays in {prepare}: python -m recsys.reproduction {prepare} --out RUNS")
        return
    page, wrong = run_card(plan, show_progress=log.is_terminal, finished=print_result)
    out.print((page.parent / "results.md").read_text(), soft_wrap=True, markup=False)
    log.print(f"page: {page}", markup=False, soft_wrap=True)
    if wrong:
        raise RefusedError(
            f"{len(wrong)} numbers of card {name} are out of band: "
            + "; ".join(one.text() for one in wrong)
            + f". The page is in {page}; same data and settings give the same numbers up to the "
            "device's rounding"
        )


def print_result(result: dict[str, Any]) -> None:
    """Print the line of a finished run."""
    from recsys.reproduction.__main__ import summary_line

    log.print(summary_line(result).rstrip(), markup=False, soft_wrap=True)


def scale(
    card: Ladder = "beauty",
    widths: Annotated[str, typer.Option(help="With commas.")] = "32,64,128,256",
    depths: Annotated[str, typer.Option(help="With commas.")] = "1,2,4",
    shares: Annotated[str, typer.Option(help="Of the users, with commas.")] = "0.125,0.25,0.5,1",
    device: Device = "auto",
    dry_run: DryRun = False,
    prepare: Prepare = None,
    folder: Folder = None,
) -> None:
    """Train a ladder of widths, depths and shares of the data, and fit L(N, D) to it.

    Looks at validation alone. Rungs that are there already are not run again, wherever they were
    run: python -m recsys.reproduction.ladder makes the same ones without the other packages.

    [bold]Examples[/]

      recsys scale beauty

      recsys scale toys --widths 16,32,64 --depths 1 --shares 0.25,0.5,1
    """
    from pipelines.reproduction.cards.card import read_card
    from pipelines.reproduction.run import arrays_of, plan_of
    from pipelines.reproduction.scale import law_text, write_study
    from recsys.fitting.training import device_named
    from recsys.reproduction.ladder import run_rung, rungs

    ladder = rungs(numbers(widths, int), numbers(depths, int), numbers(shares, float))
    place = folder or Path("runs/scale") / Path(card).stem
    plan = plan_of(
        Path(card).stem,
        read_card(card),
        place,
        num_seeds=1,
        rows=["sequence"],
        device=device,
        validation_only=True,
    )
    chosen = device_named(device)
    each = 0.4 if chosen.type == "cuda" else 15.0
    log.print(
        f"{plan.card.title}: {len(ladder)} trainings of the sequence model, about "
        f"{each * len(ladder):.0f} minutes on {chosen}; results go to {place}",
        soft_wrap=True,
        markup=False,
    )
    if dry_run:
        return
    prepared = arrays_of(plan, show_progress=log.is_terminal)
    if prepare is not None:
        prepared.save(prepare)
        out.print(f"arrays in {prepare}: python -m recsys.reproduction.ladder {prepare} --out RUNS")
        return
    for rung in ladder:
        result = run_rung(prepared, place / "rungs", rung, chosen)
        log.print(
            f"{rung.name}: cross entropy {result['loss']:.4f}, NDCG@10 {result['ndcg@10']:.4f}",
            markup=False,
        )
    for measure, law in write_study(place / "rungs", place).items():
        out.print(law_text(measure, law), soft_wrap=True, markup=False)


def numbers(text: str, kind: type[Number]) -> list[Number]:
    """Read numbers with commas between them.

    Raises:
        ValueError: One is none; says which.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers with commas between them") from None
