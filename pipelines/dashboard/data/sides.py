"""Which runs and models a page is about: those of its parameters, else a useful default.

Runs are searched by words and settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter
from typing import Any

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Side, answers, has_ranks, side
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Control, Link, Option, Origin, Parameters, select
from pipelines.pages.wording import model_label

NUM_SEARCHED = 1_000
"""Newest runs whose settings are searched for the full name of a setting."""
KINDS: dict[str, str] = {"workspace": "run", "bundle": "bundle"}


def _searched_text(run: Run) -> str:
    known = (run.name, run.dataset, KINDS[run.kind], run.status, *run.tags.values())
    return " ".join(filter(None, known)).lower()


def searched(runs: Sequence[Run], search: str) -> Sequence[Run]:
    """Keep the runs with every word, and with every setting or tag such as ``num_layers=2``."""
    for word in search.lower().split():
        name, is_setting, value = word.partition("=")
        if not is_setting:
            runs = [run for run in runs if word in _searched_text(run)]
            continue
        # A setting may be named by its last part.
        known = {key for run in runs[:NUM_SEARCHED] for key in (*run.config, *run.tags)}
        names = [key for key in known if key.lower() == name or key.lower().endswith(f".{name}")]
        runs = [
            run
            for run in runs
            if any(run.config.get(key, run.tags.get(key, "")).lower() == value for key in names)
        ]
    return runs


def ordered(runs: Sequence[Run], value_of: Callable[[Run], Any], *, descending: bool) -> list[Run]:
    """Order runs by their values, numbers or texts; those without one come last."""
    values = [(value_of(run), run) for run in runs]
    known = [
        (value.lower() if isinstance(value, str) else value, run)
        for value, run in values
        if value is not None and value != ""
    ]
    without = [run for value, run in values if value is None or value == ""]
    known.sort(key=itemgetter(0), reverse=descending)
    return [run for _, run in known] + without


MOST = 5
LOOKED_AT = 60
"""Newest runs among which a pair is looked for."""
NUM_SEARCHED = 200
"""Newest runs among which one that has what a page needs is looked for."""
OFFERED = 20
CHALLENGER = "kept as challenger"
NO_PAIR = (
    "There are no two measured runs to compare yet. Run a second one on the same data with other "
    "settings into a folder of its own: recsys run shop.toml --set seed=1 --set workspace=runs/b; "
    "or release twice: recsys run writes a bundle and its answers each time. Models of one run are "
    "compared on the page Compare with the parameters run, first and second."
)


def choose_sides(context: Context, query: Query, *, at_most: int = MOST) -> list[Side]:
    """Read the sides of a page; a pair is chosen if the page names none.

    Several ``runs`` are compared by what they serve, one by its models ``first`` and ``second``.
    """
    keys = query.several("runs", at_most=at_most)
    if len(keys) >= 2:
        runs: Sequence[Run] = [context.stores.run(key) for key in keys]
    else:
        one = query.text("run") or "".join(keys)
        models = (query.text("first"), query.text("second"))
        if one or any(models):
            run = context.stores.run(one) if one else None
            return _models_of_one(context, run, models)
        try:
            runs = default_pair(context)
        except NotFoundError:
            return _models_of_one(context)
    return [side(run) for run in runs]


def default_pair(context: Context, run: str = "") -> tuple[Run, Run]:
    """Choose the served bundle and its challenger, else the two newest runs on the same data."""
    measured = [one for one in context.stores.runs()[:LOOKED_AT] if has_ranks(one)]
    for pair in _pairs(measured):
        if not run or run in {key for one in pair for key in (one.key, one.made_by)}:
            return pair
    raise NotFoundError(NO_PAIR)


def _pairs(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """List pairs, the earlier or served first: challengers, then data, then releases in a row."""
    workspaces = [run for run in runs if run.kind == "workspace"]
    bundles = [run for run in runs if run.kind == "bundle"]
    released = [
        (one, other)
        for one in bundles
        if "served" in one.tags
        for other in runs
        if other.path.parent == one.path.parent and other is not one
    ]
    yield from (pair for pair in released if pair[1].tags.get("decision") == CHALLENGER)
    for newer, older in combinations(workspaces, 2):
        if older.data_digest is not None and older.data_digest == newer.data_digest:
            yield older, newer
    for served, older in released:
        if older in bundles[bundles.index(served) + 1 :]:
            yield older, served


def _models_of_one(
    context: Context, run: Run | None = None, models: tuple[str, str] = ("", "")
) -> list[Side]:
    """Take two models of a run: by default what it serves and the best other one."""
    for one in context.stores.runs()[:LOOKED_AT] if run is None else [run]:
        if run is None and (one.kind != "workspace" or not has_ranks(one)):
            continue
        first = side(one, models[0] or None)
        found = answers(one)
        others = [name for name in found.models if name != first.model]
        if others:
            gains = {name: one.metrics.get(f"{found.split}/{name}/ndcg@10", 0.0) for name in others}
            second = side(one, models[1] or max(gains, key=gains.__getitem__))
            if second.model == first.model:
                raise QueryError(f"second is {second.model!r}, as first is; choose another model")
            return [first, second]
        if run is not None:
            raise NotFoundError(
                f"{one.name} has one model alone, {first.model}; choose a second run to compare"
            )
    raise NotFoundError(NO_PAIR)


def newest_with_lists(context: Context) -> Run:
    """Return the newest run with lists of two models, a complete one where there is one."""
    newest = context.stores.runs()[:NUM_SEARCHED]
    for run in sorted(newest, key=lambda run: (run.status != "complete", run.kind != "workspace")):
        if has_ranks(run, 2):
            return run
    raise NotFoundError(NO_PAIR)


def origins(sides: Sequence[Side]) -> list[Origin]:
    """List the runs of sides, each once."""
    return list({one.run.key: one.run.origin for one in sides}.values())


def pair_parameters(first: Side, second: Side) -> Parameters:
    """Return the parameters of a page about two sides."""
    if first.run.key == second.run.key:
        return {"run": first.run.key, "first": first.model, "second": second.model}
    return {"runs": (first.run.key, second.run.key)}


def side_name(one: Side, sides: Sequence[Side]) -> str:
    """Label a side by its run, and by its model if the others differ by it."""
    alike = len({other.run.key for other in sides if other.run.name == one.run.name}) > 1
    run = f"{one.run.name} ({one.run.key[:4]})" if alike else one.run.name
    label = model_label(one.model)
    if len({other.model for other in sides}) > 1:
        return f"{run}, {label}" if len({other.run.key for other in sides}) > 1 else label
    return run


def controls(context: Context, sides: Sequence[Side], *, at_most: int = MOST) -> list[Control]:
    """Offer other runs and other models of each."""
    keys = tuple(dict.fromkeys(one.run.key for one in sides))
    found = [
        Control(
            name="runs",
            label="Runs to compare, the served one first",
            kind="several",
            value=keys,
            options=run_options(context, *(one.run for one in sides)),
            suggest="runs",
            at_most=at_most,
            clears=("run", "first", "second"),
        )
    ]
    if len(keys) == 1:
        options = {model: model_label(model) for model in answers(sides[0].run).models}
        for one, name, label in zip(sides, ("first", "second"), "AB", strict=False):
            found.append(select(name, f"Model {label}", one.model, options))
    return found


def run_control(context: Context, run: Run) -> list[Control]:
    """Offer other runs by `suggest_runs`, which the page names ``runs``."""
    control = Control(
        name="run",
        label="Run",
        kind="search",
        value=run.key,
        options=run_options(context, run),
        suggest="runs",
    )
    return [control]


def pair_links(sides: Sequence[Side]) -> list[Link]:
    """Lead from two sides to their users."""
    pair = pair_parameters(*sides[:2])
    return [Link(label="Users won and lost, with their items", page="why", parameters=pair)]


def k_control(k: int, most: int) -> Control:
    """Offer list lengths."""
    return Control(name="k", label="k", kind="number", value=str(k), least=1, most=most)


def run_options(context: Context, *chosen: Run) -> list[Option]:
    """Offer the chosen runs and the newest ones, by name, kind and time."""
    runs = {run.key: run for run in (*chosen, *context.stores.runs()[:OFFERED])}
    return list(map(_option, runs.values()))


def _option(run: Run) -> Option:
    time = "" if run.time is None else f", {run.time:%Y-%m-%d %H:%M}"
    return Option(value=run.key, label=f"{run.name} ({run.kind}{time})")


def suggest_runs(context: Context, query: Query, text: str) -> list[Option]:
    """Find runs to choose, as the reader types, by the search of the page Runs."""
    return list(map(_option, searched(context.stores.runs(), text)[:OFFERED]))
