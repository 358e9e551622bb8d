"""Which runs and models are compared: by the page's parameters, else a pair that is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.dashboard.context import Context
from pipelines.dashboard.document import Control, Option
from pipelines.dashboard.evidence.per_user import Side, Split, answers, side
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.runs.run import Run
from pipelines.reports.wording import model_label

MOST = 5
OFFERED = 20
"""Runs that a list of choices holds; a search finds the others."""
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

    Raises:
        NotFoundError: A run is not there, has no ranks by user, or there is no pair.
        QueryError: Only one run is named, or too many.
    """
    keys = query.several("runs", at_most=at_most)
    if len(keys) < 2 and query.text("run") and query.text("first"):
        run = context.stores.run(query.text("run"))
        models = [query.text("first"), query.text("second")]
        if not models[1] or models[0] == models[1]:
            raise QueryError(
                f"second is {models[1]!r}; it has to be another model than first, {models[0]!r}"
            )
        return [side(run, split, model) for model in models]
    if not keys:
        try:
            runs: Sequence[Run] = default_pair(context, split)
        except NotFoundError:
            return _models_of_one(context, split)
    elif len(keys) == 1:
        raise QueryError("runs has one value; choose a second run to compare it with")
    else:
        runs = [context.stores.run(key) for key in keys]
    return [
        side(run, split, query.text(f"{MODEL}{place}") or None)
        for place, run in enumerate(runs, start=1)
    ]


def default_pair(context: Context, split: Split) -> tuple[Run, Run]:
    """Choose what is served and its challenger, else the two newest runs on the same data.

    Raises:
        NotFoundError: There are no two runs with ranks by user; says how to make them.
    """
    measured = [run for run in context.stores.runs()[:LOOKED_AT] if has_ranks(run, split)]
    pairs = [*_challenged(measured), *_same_data(measured), *_released(measured)]
    if not pairs:
        raise NotFoundError(NO_PAIR)
    return pairs[0]


def _models_of_one(context: Context, split: Split) -> list[Side]:
    """Take what the newest measured run serves and the best other model of it.

    Raises:
        NotFoundError: There is no such run.
    """
    for run in context.stores.runs()[:LOOKED_AT]:
        if run.kind == "workspace" and has_ranks(run, split):
            models = answers(run, split).models
            served = side(run, split)
            others = [name for name in models if name != served.model]
            if others:
                gains = {name: run.metrics.get(f"{split}/{name}/ndcg@10", 0.0) for name in others}
                return [served, side(run, split, max(gains, key=gains.__getitem__))]
    raise NotFoundError(NO_PAIR)


def has_ranks(run: Run, split: Split) -> bool:
    """Whether a run keeps ranks by user."""
    try:
        return bool(answers(run, split).models)
    except NotFoundError:
        return False


def _challenged(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Pair what is served with the challenger that waits in the same folder."""
    for served in runs:
        if served.kind != "bundle" or "served" not in served.tags or served.path is None:
            continue
        for other in runs:
            inside = other.path is not None and other.path.parent == served.path.parent
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
    bundles = [run for run in runs if run.kind == "bundle" and run.path is not None]
    for place, served in enumerate(bundles):
        if "served" in served.tags:
            for older in bundles[place + 1 :]:
                if older.path and served.path and older.path.parent == served.path.parent:
                    yield older, served


def controls(
    context: Context, sides: Sequence[Side], split: Split, *, at_most: int = MOST
) -> list[Control]:
    """Offer other runs and other models of each."""
    if context.exported:
        return []
    chosen = [one.run for one in sides]
    offered = list(dict.fromkeys(run.key for run in (*chosen, *_offered(context))))
    by_key = {run.key: run for run in (*context.stores.runs()[:LOOKED_AT], *chosen)}
    found = [
        Control(
            name="runs",
            label="Runs, what is served first",
            kind="several",
            value=tuple(dict.fromkeys(run.key for run in chosen)),
            options=[option(by_key[key]) for key in offered],
            suggest="runs",
            at_most=at_most,
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


def _offered(context: Context) -> list[Run]:
    return [run for run in context.stores.runs() if run.kind != "mlflow"][:OFFERED]


def suggest_runs(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find runs by a part of their name or place."""
    wanted = text.casefold()
    found = [
        run
        for run in context.stores.runs()
        if run.kind != "mlflow" and wanted in f"{run.name} {run.path} {run.key}".casefold()
    ]
    return [option(run) for run in found[:OFFERED]]


def option(run: Run) -> Option:
    """Offer a run by name, kind and time."""
    time = "" if run.time is None else f", {run.time:%Y-%m-%d %H:%M}"
    return Option(value=run.key, label=f"{run.name} ({run.kind}{time})")


def name_of(one: Side, sides: Sequence[Side]) -> str:
    """Name a side: its run, and its model where that is needed to tell it from the others."""
    runs = [other.run.name for other in sides]
    label = model_label(one.model)
    if len({other.model for other in sides}) > 1:
        return f"{one.run.name}, {label}" if len(set(runs)) > 1 else label
    if runs.count(one.run.name) > 1:
        return f"{one.run.name} ({one.run.key[:4]})"
    return one.run.name
