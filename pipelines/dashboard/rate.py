"""Page ``rate``: people rate a run's lists by a rubric, and how far they agree.

All see the same lists, which are those of validation if a run has any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from features.schema import GIVEN
from pipelines.config.toml import read_toml, validate
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import Split, answers, served_model
from pipelines.dashboard.data.items import load_items, past_events
from pipelines.dashboard.data.sides import newest_with_lists, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.rubric import Ratings, Rubric
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages import document
from pipelines.pages.charts import counts, numbers, shares, texts
from recsys.content.enrichment_ledger import text_key
from recsys.content.prompt import clean_text
from recsys.data.dataset import Sequences

HISTORY = 15
"""Newest events that a rater sees."""
TITLE_CHARS, CATEGORY_CHARS, RATER_CHARS = 120, 80, 60
SPLITS: tuple[Split, Split] = ("validation", "test")
ANSWERS = {"yes": True, "no": False}


def read_rubric(path: Path) -> tuple[Rubric, Ratings]:
    """Read a rubric and its answers, in the file ``<rubric>.answers.jsonl`` next to it."""
    rubric = validate(Rubric, read_toml(path), str(path))
    return rubric, Ratings(path.with_suffix(".answers.jsonl"), rubric)


def draw_lists(run: Run, rubric: Rubric) -> list[document.Lists]:
    """Draw users by the rubric's seed, and what raters see of each: history and served list.

    The key of what they see is a digest of its words, so no answer meets another list.
    """
    found = answers(run, SPLITS)
    if found.features is None:
        raise NotFoundError(f"{run.name} is a bundle, which keeps no lists; choose a run")
    items = load_items(found.features)
    sequences = Sequences.load(found.features / "sequences" / GIVEN)
    table = pl.read_parquet(
        found.table, columns=["user_row", f"top_k_{served_model(run, found.models)}"]
    )
    table = table.unique("user_row", keep="first", maintain_order=True)
    order = np.random.default_rng(rubric.seed).permutation(len(table))[: rubric.num_lists]

    def listed(title: str, rows: Sequence[int]) -> document.ItemList:
        words = [(clean_text(items["title"][r]), clean_text(items["categories"][r])) for r in rows]
        entries = [
            document.Entry(item_id="", title=name[:TITLE_CHARS], note=kinds[:CATEGORY_CHARS])
            for name, kinds in words
        ]
        return document.ItemList(title=title, entries=entries)

    lists = []
    for user, rows in table[order.tolist()].iter_rows():
        past = sequences.item_rows[past_events(sequences, user, found.split)][::-1]
        parts = [
            listed("Chosen lately, newest first", past[:HISTORY].tolist()),
            listed("Recommended", rows[: rubric.k]),
        ]
        seen = json.dumps([[(one.title, one.note) for one in part.entries] for part in parts])
        lists.append(document.Lists(key=text_key(seen)[:16], lists=parts))
    return lists


def choose_lists(
    context: Context, query: Query
) -> tuple[Run, Rubric, Ratings, list[document.Lists]]:
    """Read the run of a page, the rubric with its answers, and the served lists to rate."""
    named = query.text("run")
    run = context.stores.run(named) if named else newest_with_lists(context, 1)
    if context.rubric is None:
        raise NotFoundError(
            "Write criteria into a file as docs/evaluation.md shows, then start "
            "recsys dashboard --rubric rubric.toml"
        )
    try:
        rubric, ratings = read_rubric(context.rubric)
    except ValueError as error:
        raise QueryError(str(error)) from None
    key = ("rated", run.key, rubric.num_lists, rubric.k, rubric.seed)
    files = answers(run, SPLITS).files
    return run, rubric, ratings, context.tables.get(key, files, lambda: draw_lists(run, rubric))


def read_rater(query: Query) -> str:
    """Read a person's name; empty if none is given yet."""
    rater = " ".join(query.text("rater").split())
    if len(rater) > RATER_CHARS or not rater.isprintable():
        raise QueryError(f"rater is {rater[:80]!r}; give at most {RATER_CHARS} characters of text")
    return rater


def save(context: Context, query: Query) -> dict[str, bool]:
    """Keep one answer of a person."""
    _, rubric, ratings, lists = choose_lists(context, query)
    if not (rater := read_rater(query)):
        raise QueryError("rater is empty; give your name")
    key = query.choice("list", [one.key for one in lists], "")
    criterion = query.choice("criterion", [one.name for one in rubric.criteria], "")
    passes = ANSWERS[query.choice("answer", ANSWERS, "")]
    ratings.keep(rater, key, criterion, passes)
    return {"kept": True}


def build(context: Context, query: Query) -> document.Page:
    """Build the page: lists and the rater's own answers, and what all raters found."""
    run, rubric, ratings, lists = choose_lists(context, query)
    rater = read_rater(query)
    name = document.Control(
        name="rater",
        label="Your name",
        kind="search",
        value=rater,
        options=[document.Option(value=one, label=one) for one in ratings.by_rater],
    )
    rating = document.Rating(
        key="rating",
        lists=lists,
        questions=[(one.name, one.description) for one in rubric.criteria],
        answers=[ratings.of(rater, one.key) for one in lists],
        parameters={"run": run.key, "rater": rater},
    )
    lead = "Give your name to rate the lists one by one; you continue where you stopped."
    return document.Page(
        title="Rate",
        lead=lead,
        blocks=[*([rating] if rater else []), describe_agreement(rubric, ratings)],
        controls=[*run_control(context, run), name],
    )


def describe_agreement(rubric: Rubric, ratings: Ratings) -> document.Table:
    """Tabulate by criterion what passed and how far raters agree."""
    rows: list[list[document.Cell]] = []
    for one in rubric.criteria:
        said = [passes for each in ratings.said(one.name).values() for passes in each]
        found = ratings.agreement(one.name) or [None] * 3
        cells = [None if cell is None or math.isnan(cell) else cell for cell in found]
        rows.append([one.name, sum(said) / len(said) if said else None, *cells])
    return document.Table(
        key="agreement",
        title="What passed, and how far raters agree",
        note="Lists are those that two people rated, of any run. Kappa is agreement beyond chance: "
        "1 for all, 0 for raters who ignore the list.",
        columns=[
            *texts("criterion"),
            *shares("passed"),
            *counts("lists"),
            *shares("equal answers"),
            *numbers("kappa"),
        ],
        rows=rows,
    )


ENTRY = PageEntry(
    name="rate",
    title="Rate",
    build=build,
    suggest={"runs": suggest_runs},
    save=save,
    keeps=("run",),
)
