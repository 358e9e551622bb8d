"""Page ``differences``: settings, data, code, versions and metrics that differ between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.config.removed import REMOVED_KEYS
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import suggest_runs
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.record import StageRecord, collect_versions, raw_files, read_stages
from pipelines.dashboard.runs.runs import link_to, nothing_there, time_text
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Control,
    Link,
    Option,
    Page,
    Table,
    Words,
)
from pipelines.pages.wording import by_fame, metric_label, model_label

PLACES = (
    "workspace",
    "tracking.",
    "release.bundles",
    *(f"data.{name}" for name in ("dataset", "events", "items", "users", "partitions", "online_")),
)
"""Beginnings of the settings that name a place; the data themselves are compared by digests."""
ABSENT = "(not set)"

Difference = tuple[str, str | None, str | None]
"""Name, and its value in the first and in the second."""
Stages = Sequence[StageRecord]


def changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """List the names whose values differ, with both; None if one has none."""
    pairs = ((name, first.get(name), second.get(name)) for name in sorted({*first, *second}))
    return [one for one in pairs if one[1] != one[2]]


def settings_changed(first: Run, second: Run) -> list[Difference] | None:
    """List the settings that differ; None if those of one are not on record.

    A bundle has those of its models' stages: with a run, the bundle's settings are compared.
    """
    if not first.config or not second.config:
        return None
    sections = [{name.partition(".")[0] for name in run.config} for run in (first, second)]
    partial = first if first.kind == "bundle" else second
    return [
        one
        for one in changed(first.config, second.config)
        if one[0].partition(".")[0] in sections[0] & sections[1]
        and one[0] not in REMOVED_KEYS
        and (first.kind == second.kind or one[0] in partial.config)
    ]


def data_changed(first: Run, second: Run, before: Stages, after: Stages) -> list[Difference] | None:
    """List the data that differ; None if they are not on record."""
    if not first.data_digest or not second.data_digest:
        return None
    found: list[Difference] = []
    if first.dataset != second.dataset:
        found.append(("data set", first.dataset, second.dataset))
    if before and after:
        raw = changed(raw_files(before), raw_files(after))
        found += [(f"raw file: {role}", one, other) for role, one, other in raw]
    if first.data_digest != second.data_digest:
        found.append(("features", first.data_digest, second.data_digest))
    return found


def code_changed(before: Stages, after: Stages) -> list[Difference] | None:
    """List the versions that differ, and the code of the stages that both have."""
    both = {one.name for one in before} & {one.name for one in after}
    if not both:
        return None
    known = [[one for one in stages if one.name in both] for stages in (before, after)]
    code = [{f"code of {one.name}": one.code for one in stages} for stages in known]
    return [*changed(*map(collect_versions, known)), *changed(*code)]


def default_pair(context: Context) -> tuple[Run, ...]:
    """Take the newest two complete runs of one kind: bundles, or else workspaces."""
    for runs in (context.stores.bundles(), context.stores.workspaces()):
        complete = [run for run in runs if run.status == "complete" and run.config]
        if len(complete) > 1:
            return complete[1], complete[0]
    return ()


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    if not context.stores.runs():
        return nothing_there(context)
    keys = query.several("runs", at_most=2)
    pair = tuple(context.stores.run(key) for key in keys) if keys else default_pair(context)
    if len(pair) == 2:
        lead, blocks = _compared(context, pair[0], pair[1])
    else:
        lead = "Choose two runs or bundles above, or two on the page Runs."
        blocks = [Words(lines=[], links=[Link(label="All runs", page="runs")])]
    control = Control(
        name="runs",
        label="Two runs",
        kind="several",
        value=tuple(run.key for run in pair),
        options=[Option(value=run.key, label=run.name) for run in pair],
        suggest="runs",
        at_most=2,
    )
    return Page(
        title="Differences",
        lead=lead,
        blocks=blocks,
        controls=[] if context.exported else [control],
        notices=[word for run in pair for word in run.problems],
    )


def _compared(context: Context, first: Run, second: Run) -> tuple[str, list[Block]]:
    """Return the lead and the blocks on two runs."""
    stages = (read_stages(context, first), read_stages(context, second))
    settings = settings_changed(first, second)
    places = [one for one in settings or () if one[0].startswith(PLACES)]
    shaping = None if settings is None else [one for one in settings if one not in places]
    data, code = data_changed(first, second, *stages), code_changed(*stages)
    names = [name for name, _, _ in shaping or ()]
    said = "settings are not on record for both"
    if shaping is not None:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        verb = "settings differ" if len(names) > 1 else "setting differs"
        said = f"{len(names)} {verb} ({', '.join(names[:3])}{more})"
        said = said if names else "no setting that shapes results differs"
    states = {True: "differ", False: "are the same"}
    others = [
        f"{what} {'are not on record for both' if found is None else states[bool(found)]}"
        for what, found in (("the data", data), ("code and versions", code))
    ]
    runs = {"runs": (first.key, second.key)}
    head = Words(
        lines=[
            f"{which}: {run.name}, {time_text(run) or 'no time'}, {run.dataset or 'unknown data'}"
            for which, run in (("First", first), ("Second", second))
        ],
        links=[
            *map(link_to, (first, second)),
            Link(label="Is the difference real? Compare", page="compare", parameters=runs),
            Link(label="Swap", page="differences", parameters={"runs": (second.key, first.key)}),
        ],
    )
    kinds = {"setting": shaping, "data": data, "code": code, "place": places}
    found = {kind: differ for kind, differ in kinds.items() if differ}
    blocks = [head, *_table(found, first, second), _metrics(first, second)]
    return f"From {first.name} to {second.name}: {said}; {'; '.join(others)}.", blocks


def _table(found: Mapping[str, Sequence[Difference]], first: Run, second: Run) -> list[Block]:
    """List the settings, data, code and places that differ; none if all are the same."""
    table = Table(
        key="differences",
        title="What differs",
        note="Settings have their dotted names of the TOML file; places shape no result.",
        columns=[
            *texts("Kind", "What"),
            *texts("First", note=first.name),
            *texts("Second", note=second.name),
        ],
        rows=[
            (kind, name, one or ABSENT, other or ABSENT)
            for kind, differ in found.items()
            for name, one, other in differ
        ],
        origins=[first.origin, second.origin],
    )
    return [table] if found else []


def _metrics(first: Run, second: Run) -> Block:
    """List the change of each metric, the served list first."""
    values: list[tuple[str, str, float, float]] = []
    for name, value in second.metrics.items():
        part, model, metric = name.split("/", 2)
        if part != "test":
            continue
        if name in first.metrics:
            values.append((model, metric, first.metrics[name], value))
        of_first = f"test/{first.served}/{metric}"
        if model == second.served != first.served and of_first in first.metrics:
            values.append(("served", metric, first.metrics[of_first], value))
    if not values:
        return Words(lines=["They share no metric on test."])
    fame = {name: place for place, name in enumerate(by_fame({one[1] for one in values}))}
    leading = ("served", first.served, second.served)
    values.sort(key=lambda one: (fame[one[1]] > 0, one[0] not in leading, fame[one[1]], one[0]))
    rows: list[Sequence[Cell]] = [
        (model_label(model), metric_label(metric), one, other, other - one)
        for model, metric, one, other in values
    ]
    return Table(
        key="metrics-table",
        title="Change of each metric on test",
        note="Second less first. On other data, or other users, a difference says little; the page "
        "Compare tests it on the same users.",
        columns=[
            *texts("Model", "Metric"),
            *numbers("First", "Second", format="metric"),
            *numbers("Difference", format="signed"),
        ],
        rows=rows,
        origins=[first.origin, second.origin],
    )


ENTRY = PageEntry(
    name="differences",
    title="Differences",
    build=build,
    suggest={"runs": suggest_runs},
    in_navigation=False,
)
