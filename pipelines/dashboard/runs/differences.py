"""The page of what differs between two runs: settings, data, code and versions, and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.config.removed import REMOVED_KEYS
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.page import link_to, nothing_there, suggested, time_text
from pipelines.dashboard.runs.record import StageRecord, raw_files_of, stages_of, versions_of
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.columns import numbers, texts
from pipelines.pages.document import (
    Cell,
    Control,
    Link,
    Option,
    Page,
    Section,
    Table,
    Words,
)
from pipelines.pages.report_data import SPLITS
from pipelines.pages.wording import by_fame, metric_label, model_label

PLACES = (
    "workspace",
    "tracking.",
    "release.bundles",
    *(f"data.{name}" for name in ("dataset", "events", "items", "users", "partitions", "online_")),
)
"""Settings that say where something lies; the data themselves are compared by their digests."""
ABSENT = "(not set)"
UNKNOWN = "Not on record for both."

Difference = tuple[str, str | None, str | None]
"""Name, and its value in the first and in the second."""


def is_place(name: str) -> bool:
    """Whether a setting only says where something lies."""
    return name.startswith(PLACES)


def changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """List the names whose values differ, with both; None where one has none."""
    pairs = ((name, first.get(name), second.get(name)) for name in sorted({*first, *second}))
    return [one for one in pairs if one[1] != one[2]]


def settings_changed(first: Run, second: Run) -> list[Difference] | None:
    """List the settings that differ; None where those of one are not on record.

    A bundle has those of its models' stages: with a run, the bundle's settings are compared.
    """
    if not first.config or not second.config:
        return None
    sections = [{name.partition(".")[0] for name in run.config} for run in (first, second)]
    found = [
        one
        for one in changed(first.config, second.config)
        if one[0].partition(".")[0] in sections[0] & sections[1] and one[0] not in REMOVED_KEYS
    ]
    if first.kind == second.kind:
        return found
    partial = first if first.kind == "bundle" else second
    return [one for one in found if one[0] in partial.config]


def data_changed(
    first: Run, second: Run, before: Sequence[StageRecord], after: Sequence[StageRecord]
) -> list[Difference] | None:
    """List what differs in the data; None where they are not on record."""
    if not first.data_digest or not second.data_digest:
        return None
    raw = changed(raw_files_of(before), raw_files_of(after)) if before and after else []
    found: list[Difference] = [(f"raw file: {role}", one, other) for role, one, other in raw]
    if first.dataset != second.dataset:
        found.insert(0, ("data set", first.dataset, second.dataset))
    if first.data_digest != second.data_digest:
        found.append(("features", first.data_digest, second.data_digest))
    return found


def code_changed(
    before: Sequence[StageRecord], after: Sequence[StageRecord]
) -> list[Difference] | None:
    """List what differs in versions, and in the code of the stages that both have."""
    both = {one.name for one in before} & {one.name for one in after}
    if not both:
        return None
    code = [
        {f"code of {one.name}": one.code for one in stages if one.name in both}
        for stages in (before, after)
    ]
    libraries = [
        versions_of([one for one in stages if one.name in both]) for stages in (before, after)
    ]
    return [*changed(*libraries), *changed(*code)]


def default_pair(context: Context) -> tuple[Run, ...]:
    """Take the newest two complete runs of one kind: bundles, or else workspaces."""
    for runs in (context.stores.bundles(), context.stores.workspaces()):
        complete = [run for run in runs if run.status == "complete" and run.config]
        if len(complete) > 1:
            return complete[1], complete[0]
    return ()


def build(context: Context, query: Query) -> Page:
    """Make the page.

    Raises:
        NotFoundError: A run is gone.
        QueryError: More than two runs are chosen.
    """
    if not context.stores.runs():
        return nothing_there(context)
    keys = query.several("runs", at_most=2)
    pair = tuple(context.stores.run(key) for key in keys) if keys else default_pair(context)
    split = query.choice("split", SPLITS, SPLITS[0])
    controls = _controls(pair, split, context)
    notices = [word for run in pair for word in run.problems]
    if len(pair) < 2:
        words = Words(
            lines=["Choose two runs or bundles above, or two on the page Runs."],
            tone="note",
            links=[Link(label="All runs", page="runs")],
        )
        lead = "What differs between two runs."
        return Page(
            title="Differences", lead=lead, blocks=[words], controls=controls, notices=notices
        )
    first, second = pair
    stages = (stages_of(context, first), stages_of(context, second))
    settings = settings_changed(first, second)
    data = data_changed(first, second, *stages)
    code = code_changed(*stages)
    return Page(
        title="Differences",
        lead=_lead(first, second, settings, data, code),
        blocks=[_who(first, second), *_tables(first, second, settings, data, code, split)],
        controls=controls,
        notices=notices,
    )


def _controls(pair: Sequence[Run], split: str, context: Context) -> list[Control]:
    if context.exported:
        return []
    return [
        Control(
            name="runs",
            label="Two runs",
            kind="several",
            value=tuple(run.key for run in pair),
            options=[Option(value=run.key, label=run.name) for run in pair],
            suggest="runs",
            at_most=2,
        ),
        Control(
            name="split",
            label="Split",
            kind="select",
            value=split,
            options=[Option(value=one, label=one) for one in SPLITS],
        ),
    ]


def _lead(
    first: Run,
    second: Run,
    settings: Sequence[Difference] | None,
    data: Sequence[Difference] | None,
    code: Sequence[Difference] | None,
) -> str:
    shaping = [name for name, _, _ in settings or () if not is_place(name)]
    if settings is None:
        said = "settings are not on record for both"
    elif not shaping:
        said = "no setting that shapes results differs"
    else:
        more = f" and {len(shaping) - 3} more" if len(shaping) > 3 else ""
        verb = "settings differ" if len(shaping) > 1 else "setting differs"
        said = f"{len(shaping)} {verb} ({', '.join(shaping[:3])}{more})"
    states = {True: "differ", False: "are the same"}
    others = [
        f"{what} {'are not on record for both' if found is None else states[bool(found)]}"
        for what, found in (("the data", data), ("code and versions", code))
    ]
    return f"From {first.name} to {second.name}: {said}; {'; '.join(others)}."


def _who(first: Run, second: Run) -> Words:
    lines = [
        f"{which}: {run.name}, {time_text(run) or 'no time'}, {run.dataset or 'unknown data'}"
        for which, run in (("First", first), ("Second", second))
    ]
    runs = {"runs": (first.key, second.key)}
    links = [
        *map(link_to, (first, second)),
        Link(label="Is the difference real? Compare", page="compare", parameters=runs),
        Link(label="Swap", page="differences", parameters={"runs": (second.key, first.key)}),
    ]
    return Words(lines=lines, links=links)


def _tables(
    first: Run,
    second: Run,
    settings: Sequence[Difference] | None,
    data: Sequence[Difference] | None,
    code: Sequence[Difference] | None,
    split: str,
) -> list[Section]:
    runs = (first, second)
    places = [one for one in settings or () if is_place(one[0])]
    shaping = None if settings is None else [one for one in settings if not is_place(one[0])]
    metrics = _metrics(first, second, split)
    shared = metrics if metrics.rows else Words(lines=[f"They share no metric on {split}."])
    return [
        _section("settings", "Settings", shaping, "No setting that shapes results differs.", runs),
        _section("data", "Data", data, "The data are the same.", runs),
        _section("code", "Code and versions", code, "Code and versions are the same.", runs),
        Section(key="metrics", title="Metrics", blocks=[shared]),
        _section("places", "Places", places, "All files lie in the same places.", runs),
    ]


def _section(
    key: str, title: str, found: Sequence[Difference] | None, none: str, runs: tuple[Run, Run]
) -> Section:
    if not found:
        words = UNKNOWN if found is None else none
        return Section(key=key, title=title, blocks=[Words(lines=[words])])
    rows = [(name, one or ABSENT, other or ABSENT) for name, one, other in found]
    table = Table(
        key=f"{key}-table",
        title=f"{title} that differ",
        note="Names are dotted as in the TOML file.",
        columns=[
            *texts("What"),
            *texts("First", note=runs[0].name),
            *texts("Second", note=runs[1].name),
        ],
        rows=rows,
        origins=[run.origin for run in runs],
    )
    return Section(key=key, title=title, blocks=[table])


def _metrics(first: Run, second: Run, split: str) -> Table:
    """Lay out what each metric did, the served list first."""
    prefix = f"{split}/"
    shared = [name for name in first.metrics if name in second.metrics and name.startswith(prefix)]
    served = (first.served, second.served)
    values: list[tuple[str, str, float, float]] = []
    if served[0] and served[1] and served[0] != served[1]:
        values += [
            ("served", metric, first.metrics[f"{split}/{served[0]}/{metric}"], value)
            for name, value in second.metrics.items()
            if name.startswith(f"{split}/{served[1]}/")
            and f"{split}/{served[0]}/{(metric := name.split('/', 2)[2])}" in first.metrics
        ]
    for name in shared:
        _, model, metric = name.split("/", 2)
        values.append((model, metric, first.metrics[name], second.metrics[name]))
    fame = {name: place for place, name in enumerate(by_fame({one[1] for one in values}))}
    leading = ("served", *filter(None, served))
    values.sort(key=lambda one: (fame[one[1]] > 0, one[0] not in leading, fame[one[1]], one[0]))
    rows: list[Sequence[Cell]] = [
        (model_label(model), metric_label(metric), one, other, other - one)
        for model, metric, one, other in values
    ]
    return Table(
        key="metrics-table",
        title=f"What each metric did on {split}",
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
    suggest={"runs": suggested},
    in_navigation=False,
)
