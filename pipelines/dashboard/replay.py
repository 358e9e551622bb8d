"""The page Replay: quality and cost of retraining policies, and quality by age of the models.

A backtest's document is written at the end. Until then its steps are measured from their lists;
slices and intervals need the whole, and the served lists of later steps are blended last.

Axes: Q queries of a step, M targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from pipelines.backtest.run import DOCUMENT, FOLDER
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import (
    UnreadableError,
    changed_at,
    names_in,
    place_key,
    read_table,
)
from pipelines.dashboard.workspaces.find import is_workspace
from pipelines.pages.backtest import sections_of
from pipelines.pages.backtest_numbers import ALL, POLICY_NAMES, Backtest, Choice
from pipelines.pages.document import Control, Option, Page, Words, select
from pipelines.pages.wording import metric_label, model_label
from recsys.data.batch import Jagged
from recsys.replay.folder import PEER, SERVED, ReplayFolder
from recsys.replay.measures import METRICS, ListMeasures, measured_lists, moment_text, row_of
from recsys.replay.run import DESCRIPTION, answered_by
from recsys.replay.steps import POLICIES, SECONDS_PER_DAY

TITLE = "Replay"
NOTHING = (
    "There is no backtest below the dashboard's folders. A backtest replays a log: models are "
    "fitted on what was known at each moment and judged by what came next, with and without "
    "retraining. Make one for a run: recsys backtest runs/shop"
)
MOST = 4
OFFERED, LOOKED_AT = 40, 5
DAMAGED = (OSError, EOFError, KeyError, ValueError, IndexError, BadZipFile)
"""Errors of a file that is half written."""


def backtests(context: Context) -> list[Backtest]:
    """List all backtests without their numbers, the newest first."""
    found = [
        context.cache.get(
            ("backtest", str(path)),
            (path / DOCUMENT, path / DESCRIPTION, path / "steps"),
            partial(_found, path),
        )
        for path in context.stores.backtests()
    ]
    return sorted(found, key=lambda one: (str(one.time), one.name), reverse=True)


def _found(path: Path) -> Backtest:
    whole = path.resolve()
    judged = None
    try:
        description = read_table(path / DESCRIPTION) or {}
        steps = [one for one in description["steps"] if one["number"] > 0]
        judged = (str(description["data_digest"]), steps[0]["begin"], steps[-1]["end"])
    except (UnreadableError, LookupError, TypeError):
        pass
    return Backtest(
        key=place_key(str(whole)),
        name=f"{whole.parent.name}/{whole.name}" if whole.name == FOLDER else whole.name,
        path=path,
        run=place_key(str(whole.parent)) if is_workspace(set(names_in(whole.parent))) else "",
        time=changed_at(path / DOCUMENT) or changed_at(path / "steps"),
        finished=(path / DOCUMENT).exists(),
        judged=judged,
    )


def read(context: Context, found: Backtest) -> Backtest:
    """Read the numbers of a backtest; `Backtest.problem` says why they cannot be read."""
    path, name = found.path, found.name
    assert path is not None
    try:
        if found.finished:
            return context.cache.get(
                ("numbers of a backtest", str(path)),
                (path / DOCUMENT,),
                lambda: replace(found, document=_checked(read_table(path / DOCUMENT) or {})),
            )
        description = read_table(path / DESCRIPTION) or {}
        return replace(found, document=_measured_so_far(context, path, description))
    except UnreadableError as error:
        return replace(found, problem=f"{name}: {error}")
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        problem = (
            f"{name} cannot be read: it was written by another version of recsys, or by hand "
            f"({type(error).__name__}: {error}); recsys backtest writes its document again"
        )
        return replace(found, problem=problem)


def _checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that a document has the parts that pages read."""
    for name in ("metric", "policies", "summary", "leads"):
        document[name]
    for names, parts in (
        (("number", "begin", "num_queries"), document["steps"]),
        (("policy", "row", "step"), document["rows"]),
        (("policy", "row", "step", "slice", "metrics"), document["slices"]),
    ):
        for part in parts:
            for name in names:
                part[name]
    for part in document["rows"]:
        if "error" not in part:
            part["metrics"], part["model_age_days"], part["fit_seconds"]
    return document


def _measured_so_far(
    context: Context, path: Path, description: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Build the document of an unfinished backtest, of the steps whose lists are there."""
    folder = ReplayFolder(path)
    judged = {int(one["number"]): one for one in description["steps"] if one["number"] > 0}
    policies = tuple(description["config"]["policies"])
    steps: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    first = judged[1]["begin"] if 1 in judged else 0
    for number, step in judged.items():
        files = sorted(folder.step(number).glob("lists/*.npz"))
        found = context.cache.get(
            ("lists of a step", str(path), number),
            [folder.queries(number), *files],
            partial(_answers, folder, number, files),
        )
        if not found:
            continue
        rows += _rows(found, number, policies, (step["begin"] - first) / SECONDS_PER_DAY)
        steps.append(
            {
                "number": number,
                "begin": moment_text(step["begin"]),
                "end": moment_text(step["end"]),
                "num_queries": len(next(iter(found.values())).values[METRICS[0]]),
            }
        )
    return {
        **{name: description[name] for name in ("data_set", "data_digest", "seed")},
        "config_digest": description["digest"],
        "metric": METRICS[0],
        "steps": steps,
        "num_planned": len(judged),
        "policies": {name: POLICIES[name] for name in policies},
        "rows": rows,
        "slices": [],
        "summary": [],
        "leads": [],
    }


def _answers(
    folder: ReplayFolder, number: int, files: Sequence[Path]
) -> dict[tuple[str, str], ListMeasures]:
    """Measure all lists of a step, by policy and row; half-written files are left out."""
    try:
        with np.load(folder.queries(number), allow_pickle=False) as file:
            targets = Jagged(
                torch.from_numpy(file["targets_values"].astype(np.int64)),
                torch.from_numpy(file["targets_offsets"].astype(np.int64)),
            )
    except DAMAGED:
        return {}
    found = {}
    for path in files:
        policy, _, row = path.stem.partition(".")
        if path.name.endswith(".part.npz"):
            continue
        try:
            found[policy, row] = measured_lists(path, targets)
        except DAMAGED:
            continue
    return found


def _rows(
    found: Mapping[tuple[str, str], ListMeasures], number: int, policies: Sequence[str], age: float
) -> Iterator[dict[str, Any]]:
    """Build the rows of a step for every policy; all policies share the first step's models."""
    for policy in (*policies, PEER):
        made_by = policy if policy == PEER else answered_by(policy, number)
        for (one, row), measured in found.items():
            if one == (policy if row == SERVED else made_by):
                yield row_of(policy, row, number, age, measured)


def read_choice(context: Context, query: Query, known: Sequence[Backtest]) -> Choice:
    """Read the parameters; without any, choose the newest finished backtest."""
    by_key = {one.key: one for one in known}
    keys = query.several("replays", at_most=MOST)
    for key in keys:
        if key not in by_key:
            raise NotFoundError(f"no backtest {key!r}: its folder is gone, or never was")
    if run := query.text("run"):
        # A run without a backtest of its own leaves the choice open.
        keys = keys or tuple(one.key for one in known if one.run == run)[:1]
    chosen = [read(context, by_key[key]) for key in keys] or [_newest(context, known)]
    first = next((one for one in chosen if one.has_numbers), chosen[0])
    others = [
        one for one in chosen if one is not first and one.has_numbers and one.is_comparable(first)
    ]
    shown = (first, *others)
    choice = Choice(
        shown=shown,
        left_out=tuple(one for one in chosen if one not in shown),
        problems=tuple(one.problem for one in chosen if one.problem),
        metric="",
        policy="",
    )
    if not first.has_numbers:
        return choice
    policy = query.choice("policy", first.policies, first.policies[0])
    # Lists of later steps are blended last, so an unfinished one may have no served ones.
    rows = first.rows(policy) or first.rows(first.policies[0]) or (SERVED,)
    return replace(
        choice,
        policy=policy,
        row=query.choice("model", rows, rows[0]),
        metric=query.choice("metric", first.metrics, first.document["metric"]),
        slice=query.choice("slice", (ALL, *first.slices), ALL),
    )


def _newest(context: Context, known: Sequence[Backtest]) -> Backtest:
    """Read the newest one that has numbers, a finished one first."""
    ordered = sorted(known, key=lambda one: not one.finished)[:LOOKED_AT]
    tried = [read(context, one) for one in ordered]
    return next((one for one in tried if one.has_numbers), tried[0])


def _controls(context: Context, choice: Choice, known: Sequence[Backtest]) -> list[Control]:
    """Offer other backtests, metrics, policies, lists and slices."""
    first, found = choice.first, []
    if not context.exported:
        # Those that are comparable with what is shown come first.
        ordered = sorted(
            known, key=lambda one: (one.key not in choice.keys, not one.is_comparable(first))
        )
        options = [
            Option(
                value=one.key,
                label=one.name if one.is_comparable(first) else f"{one.name} (other data or time)",
            )
            for one in ordered[:OFFERED]
        ]
        several = Control(
            name="replays",
            label="Backtests",
            kind="several",
            value=choice.keys,
            options=options,
            at_most=MOST,
            clears=("metric", "policy", "model", "slice"),
        )
        found.append(several)
    if not first.has_numbers:
        return found
    policies = {one: f"{one}: {POLICY_NAMES[one]}" for one in first.policies}
    rows = first.rows(choice.policy) or (choice.row,)
    found += [
        select(
            "metric", "Metric", choice.metric, {one: metric_label(one) for one in first.metrics}
        ),
        select("policy", "Policy of the sources", choice.policy, policies),
        select("model", "List", choice.row, {one: model_label(one) for one in rows}),
    ]
    if first.slices:
        slices = {ALL: "all queries", **{one: one for one in first.slices}}
        found.append(select("slice", "Queries", choice.slice, slices))
    return found


def build(context: Context, query: Query) -> Page:
    """Show the chosen backtests side by side."""
    known = backtests(context)
    if not known:
        return Page(title=TITLE, lead="Nothing was replayed yet.", blocks=[Words(lines=[NOTHING])])
    choice = read_choice(context, query, known)
    first, notices = choice.first, list(choice.problems)
    controls = _controls(context, choice, known)
    if not first.has_numbers:
        line = first.problem or (
            f"{first.name} has answered no step yet: the warm-up and the first step come first. "
            "recsys backtest, called once more with the same configuration, continues it."
        )
        return Page(
            title=TITLE,
            lead="Nothing can be shown yet.",
            blocks=[Words(lines=[line])],
            controls=controls,
            notices=notices,
        )
    notices += [_unfinished(one) for one in choice.shown if not one.finished]
    notices += [
        f"{one.name} is left out: it has no numbers yet, or is of other data or another time than "
        f"{first.name}, which are not comparable"
        for one in choice.left_out
    ]
    # A backtest that has more steps than before is another one.
    keys = tuple((one.key, str(one.time), len(one.document["rows"])) for one in choice.shown)
    lead, sections = context.cache.get(
        ("replay", keys, choice.metric, choice.policy, choice.row, choice.slice),
        (),
        lambda: sections_of(choice),
    )
    return Page(title=TITLE, lead=lead, blocks=sections, controls=controls, notices=notices)


def _unfinished(one: Backtest) -> str:
    steps = one.document["steps"]
    rows = {(row["policy"], row["step"]) for row in one.document["rows"]}
    parts = ", ".join(
        f"{policy} {sum((policy, step['number']) in rows for step in steps)}"
        for policy in one.policies
    )
    return (
        f"{one.name} is not finished: {len(steps)} of {one.document['num_planned']} steps have "
        f"lists ({parts}), which are shown; slices, intervals and the served list come at the end. "
        "recsys backtest, called once more, continues it"
    )


def exports(context: Context, query: Query) -> list[Query]:
    """Choose the backtest of the run that a file is about."""
    run = query.text("run")
    found = [one for one in backtests(context) if one.run == run]
    if not found:
        raise NotFoundError("the run has no backtest; recsys backtest makes one")
    return [Query.of(run=run, replays=found[0].key)]


ENTRY = PageEntry(name="replay", title=TITLE, build=build, exports=exports, keeps=("run",))
