"""Which runs and models are compared: by the page's parameters, else a pair that is worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import SPLITS, Side, Split, answers, side
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Control, Option
from pipelines.pages.wording import model_label

MOST = 5
LOOKED_AT = 60
"""Newest runs among which a pair is looked for."""
CHALLENGER = "kept as challenger"
MODEL = "model"
"""Begins the parameter of a side's model: model1, model2, ..."""
NO_PAIR = (
    "There are no two measured runs to compare yet. Run a second one on the same data with other "
    "settings into a folder of its own: recsys run --config shop.toml --set seed=1 -w runs/second; "
    "or release twice: recsys run writes a bundle and its answers each time. Models of one run are "
    "compared on the page Compare with the parameters run, first and second."
)


def sides_of(context: Context, query: Query, split: Split, *, at_most: int = MOST) -> list[Side]:
    """Read the sides of a page; a pair is chosen where the page names none.

    Two or more ``runs`` are compared by what they serve, or by ``model1``, ``model2``, ...; one run
    by two of its models, ``first`` and ``second``.

    Raises:
        NotFoundError: A run is not there, has no ranks by user, or there is no pair.
        QueryError: Too many are named, or one model twice.
    """
    keys = query.several("runs", at_most=at_most)
    if len(keys) >= 2:
        runs: Sequence[Run] = [context.stores.run(key) for key in keys]
    else:
        one = query.text("run") or "".join(keys)
        models = (query.text("first"), query.text("second"))
        if one or any(models):
            run = context.stores.run(one) if one else None
            return _models_of_one(context, split, run, models)
        try:
            runs = default_pair(context, split)
        except NotFoundError:
            return _models_of_one(context, split)
    return [
        side(run, split, query.text(f"{MODEL}{place}") or None)
        for place, run in enumerate(runs, start=1)
    ]


def default_pair(context: Context, split: Split, run: str = "") -> tuple[Run, Run]:
    """Choose what is served and its challenger, else the two newest runs on the same data.

    Args:
        context: Of the dashboard.
        split: That they were measured on.
        run: Key of a run that has to be in the pair, or has made one of it; any without.

    Raises:
        NotFoundError: There are no two runs with ranks by user; says how to make them.
    """
    measured = [one for one in context.stores.runs()[:LOOKED_AT] if has_ranks(one, split)]
    pairs = (*_challenged(measured), *_same_data(measured), *_released(measured))
    for pair in pairs:
        if not run or run in {key for one in pair for key in (one.key, one.made_by)}:
            return pair
    raise NotFoundError(NO_PAIR)


def _models_of_one(
    context: Context, split: Split, run: Run | None = None, models: tuple[str, str] = ("", "")
) -> list[Side]:
    """Take two models of a run: by default what it serves and the best other one.

    Raises:
        NotFoundError: There is no such run.
        QueryError: Both are one model.
    """
    runs = context.stores.runs()[:LOOKED_AT] if run is None else [run]
    for one in runs:
        if run is None and (one.kind != "workspace" or not has_ranks(one, split)):
            continue
        first = side(one, split, models[0] or None)
        others = [name for name in answers(one, split).models if name != first.model]
        if others:
            gains = {name: one.metrics.get(f"{split}/{name}/ndcg@10", 0.0) for name in others}
            second = side(one, split, models[1] or max(gains, key=gains.__getitem__))
            if second.model == first.model:
                raise QueryError(f"second is {second.model!r}, as first is; choose another model")
            return [first, second]
        if run is not None:
            raise NotFoundError(
                f"{one.name} has one model alone, {first.model}; choose a second run to compare"
            )
    raise NotFoundError(NO_PAIR)


def has_ranks(run: Run, split: Split) -> bool:
    """Whether a run keeps ranks by user."""
    try:
        return bool(answers(run, split).models)
    except NotFoundError:
        return False


def split_control(sides: Sequence[Side], split: Split) -> Control:
    """Offer the splits on which all sides were measured."""
    known = [name for name in SPLITS if all(has_ranks(one.run, name) for one in sides)]
    options = [Option(value=name, label=name) for name in known]
    return Control(name="split", label="Split", kind="select", value=split, options=options)


def _challenged(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Pair what is served with the challenger that waits in the same folder."""
    for served in runs:
        if served.kind != "bundle" or "served" not in served.tags:
            continue
        for other in runs:
            inside = other.path.parent == served.path.parent
            if inside and other.tags.get("decision") == CHALLENGER and other is not served:
                yield served, other


def _same_data(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Pair the newest workspace with the one before it on the same data, the earlier first."""
    whole = [run for run in runs if run.kind == "workspace"]
    for place, newer in enumerate(whole):
        for older in whole[place + 1 :]:
            if older.data_digest is not None and older.data_digest == newer.data_digest:
                yield older, newer


def _released(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Pair what is served with the bundle before it in the same folder."""
    bundles = [run for run in runs if run.kind == "bundle"]
    for place, served in enumerate(bundles):
        if "served" in served.tags:
            for older in bundles[place + 1 :]:
                if older.path.parent == served.path.parent:
                    yield older, served


def controls(
    context: Context, sides: Sequence[Side], split: Split, *, at_most: int = MOST
) -> list[Control]:
    """Offer other runs and other models of each."""
    if context.exported:
        return []
    chosen = [one.run for one in sides]
    newest = context.stores.runs()[:OFFERED]
    offered = {run.key: run for run in (*chosen, *newest)}
    found = [
        Control(
            name="runs",
            label="Runs to compare, the served one first",
            kind="several",
            value=tuple(dict.fromkeys(run.key for run in chosen)),
            options=[run_option(run) for run in offered.values()],
            suggest="runs",
            at_most=at_most,
            clears=("run", "first", "second", *(f"{MODEL}{place}" for place in range(1, MOST + 1))),
        )
    ]
    alike = len({run.key for run in chosen}) == 1
    for place, one in enumerate(sides, start=1):
        models = answers(one.run, split).models
        if len(models) > 1:
            found.append(
                Control(
                    name=("first", "second")[place - 1] if alike else f"{MODEL}{place}",
                    label=f"Model of {'ABCDE'[place - 1]}",
                    kind="select",
                    value=one.model,
                    options=[Option(value=name, label=model_label(name)) for name in models],
                )
            )
    return found


def name_of(one: Side, sides: Sequence[Side]) -> str:
    """Name a side: its run, and its model where that is needed to tell it from the others."""
    alike = len({other.run.key for other in sides if other.run.name == one.run.name}) > 1
    run = f"{one.run.name} ({one.run.key[:4]})" if alike else one.run.name
    label = model_label(one.model)
    if len({other.model for other in sides}) > 1:
        return f"{run}, {label}" if len({other.run.key for other in sides}) > 1 else label
    return run


NUM_SEARCHED = 200
"""Newest runs among which one that has what a page needs is looked for."""
OFFERED = 20


def one_run(context: Context, query: Query, has: Callable[[Run], bool], missing: str) -> Run:
    """Take the run that a page names, else the newest complete one that has what the page needs.

    Args:
        missing: Says what to do where there is none.

    Raises:
        NotFoundError: The named run is not there, or none has what the page needs.
    """
    if key := query.text("run"):
        return context.stores.run(key)
    runs = list(context.stores.runs()[:NUM_SEARCHED])
    known = [run for run in runs if run.kind == "workspace"] + runs
    for status in ("complete", "unfinished"):
        for run in known:
            if run.status == status and has(run):
                return run
    raise NotFoundError(missing)


def run_control(context: Context, run: Run, clears: Sequence[str] = ()) -> list[Control]:
    """Offer other runs by `suggest_runs`, which the page names ``runs``; none in a file."""
    if context.exported:
        return []
    others = (one for one in context.stores.runs() if one.key != run.key)
    near = [run, *others][:OFFERED]
    return [
        Control(
            name="run",
            label="Run",
            kind="search",
            value=run.key,
            options=[run_option(one) for one in near],
            suggest="runs",
            clears=clears,
        )
    ]


def suggest_runs(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find runs that have files by a part of their name, data or place."""
    wanted = text.casefold()
    found = [
        run
        for run in context.stores.runs()
        if wanted in f"{run.name} {run.dataset} {run.path} {run.key}".casefold()
    ]
    return [run_option(run) for run in found[:OFFERED]]


def run_option(run: Run) -> Option:
    """Offer a run by name, kind and time."""
    time = "" if run.time is None else f", {run.time:%Y-%m-%d %H:%M}"
    return Option(value=run.key, label=f"{run.name} ({run.kind}{time})")
