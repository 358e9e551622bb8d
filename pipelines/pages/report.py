"""The page of a run: the served list, and every measurement of its models.

The stage ``report`` writes all of it to a file. The dashboard's page of a run shows the sections of
`measured_sections`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from features.schema import GIVEN
from pipelines.candidates.blends import describe_new_items
from pipelines.pages.charts import numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Code,
    Origin,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
    with_origins,
)
from pipelines.pages.figures import blend_figure, curve_figure, slice_figure
from pipelines.pages.ranker import ranker_sections
from pipelines.pages.report_data import ReportData
from pipelines.pages.summary import (
    BASELINE,
    answer,
    comparisons,
    headline_model,
    lost_rows,
    method_label,
    notices,
    protocol,
    ranged,
    served_label,
    time_span,
    worst_slice,
)
from pipelines.pages.wording import by_fame, metric_label, metric_meaning, model_label

MAX_METRICS = 5
"""Metrics of the table with intervals."""
NEXT = (
    "Next, serve it: recsys serve <workspace>",
    "Compare it with other runs: recsys dashboard",
    "Measure what retraining is worth: recsys backtest",
)


def report_page(data: ReportData) -> Page:
    """Build the whole report of a run."""
    return Page(
        title=data.title,
        lead=answer(data),
        blocks=[
            headline_tiles(data),
            Words(lines=NEXT, tone="note"),
            *measured_sections(data),
            Section(key="protocol", title="Protocol", blocks=[Words(lines=protocol(data))]),
            _data(data),
            _reproduce(data),
        ],
        notices=notices(data),
    )


def measured_parts(
    data: ReportData, origins: Sequence[Origin]
) -> tuple[str, Sequence[Tile], list[Section]]:
    """Build the answer, its tiles and the sections on models, for another page."""
    return answer(data), headline_tiles(data).tiles, measured_sections(data, origins)


def headline_tiles(data: ReportData) -> Tiles:
    """Show the served list, its lead over popularity, and the users it serves worst."""
    model, name = headline_model(data), metric_label(data.primary)
    interval = data.interval(model, "test")
    note = f"{served_label(data, model)}, 95% interval {ranged(interval)}"
    tiles = [Tile(label=f"{name} on test", value=f"{interval.mean:.4f}", note=note)]
    popular = data.interval(BASELINE, "test").mean if BASELINE in data.models else 0.0
    if popular and model != BASELINE:
        times = f"{interval.mean / popular:.1f} times"
        note = f"its {name}, which is {popular:.4f}"
        tiles.append(Tile(label="Over popularity", value=times, note=note))
    if worst := worst_slice(data, model):
        tiles.append(
            Tile(
                label="Served worst",
                value=worst.name,
                note=f"by {worst.group.replace('_', ' ')}: {name} "
                f"{worst.metrics[data.primary].mean:.4f}, {worst.num_users:,} users",
            )
        )
    facts = data.features
    if facts:
        note = f"{facts['users']:,} users, {facts['items']:,} items; {time_span(data)}"
        tiles.append(Tile(label="Events", value=f"{facts['events']:,}", note=note))
    if looks := data.provenance.num_test_looks:
        note = "in this workspace; models are chosen on validation"
        tiles.append(Tile(label="Looks at the test split", value=f"{looks:,}", note=note))
    return Tiles(tiles=tiles)


def measured_sections(data: ReportData, origins: Sequence[Origin] = ()) -> list[Section]:
    """Build the sections on models; a subject without numbers has none."""
    sections = [
        *(
            Section(key=key, title=title, note=note, blocks=[one for one in blocks if one])
            for key, title, note, blocks in _sections(data)
        ),
        *ranker_sections(data.ranker),
        _training(data),
    ]
    return [with_origins(one, origins) for one in sections if one.blocks]


def _sections(data: ReportData) -> Iterator[tuple[str, str, str, Sequence[Block | None]]]:
    """List key, title, note and blocks of the sections on lists."""
    tables = [interval_table(data, split) for split in data.splits]
    yield "results", "Results", "", [*tables, _every_metric(data)]
    yield "significance", "Statistical significance", "", [_significance(data)]
    note = "Each row is a slice of the users or items of the test split. Wide intervals come from "
    chosen = [one for one in (BASELINE, headline_model(data)) if one in data.models]
    yield "slices", "Slices", f"{note}few users.", [slice_figure(data, chosen)]
    note = "Properties of the lists other than accuracy. Which values are best depends on the "
    yield "beyond", "Beyond accuracy", f"{note}application.", [_beyond(data)]
    note = (
        "How the models' lists are merged into the served list. Learned weights are cross-fitted: "
        "each half of the validation users is measured with weights fitted on the other half."
    )
    yield "blend", "Blend", note, [*_blend(data)]


def interval_table(data: ReportData, split: str) -> Table:
    """Show the metrics of each model with their intervals, the best on validation first."""
    measured = data.measured(split)
    found: dict[tuple[float, ...], str] = {}
    for metric in by_fame(measured.models[data.models[0]].intervals, data.primary):
        # With one held-out item a user the hit rate is the recall, and MAP is MRR.
        means = tuple(measured.models[model].intervals[metric].mean for model in data.models)
        found.setdefault(means, metric)
    metrics = list(found.values())[:MAX_METRICS]
    columns = texts("model")
    for metric in metrics:
        label = metric_label(metric)
        columns += numbers(label, format="metric", note=metric_meaning(metric))
        columns += texts(f"{label}, 95%", note="Interval over users.")
    rows: list[list[Cell]] = []
    for model in data.ranked_models:
        intervals = [measured.models[model].intervals[metric] for metric in metrics]
        cells = [cell for one in intervals for cell in (one.mean, ranged(one))]
        rows.append([model_label(model), *cells])
    return Table(
        key=f"intervals-{split}",
        title=f"Metrics on {split}",
        note=f"{measured.num_users:,} users, {measured.num_targets:,} held-out items. Higher is "
        f"better; sorted by {metric_label(data.primary)} on {data.chosen_on}.",
        columns=columns,
        rows=rows,
    )


def _every_metric(data: ReportData) -> Table:
    values = data.metrics[GIVEN]["test"]
    names = by_fame(values[data.models[0]], data.primary)
    return Table(
        key="every-metric",
        title="All metrics on test, at every cutoff",
        note="Search by the name of a metric.",
        columns=[*texts("metric"), *numbers(*map(model_label, data.models), format="metric")],
        rows=[
            (metric_label(name), *(values[model].get(name) for model in data.models))
            for name in names
        ],
        page_length=10,
    )


def _significance(data: ReportData) -> Table | None:
    label, rows = metric_label(data.primary), []
    for one in comparisons(data):
        names = model_label(one.candidate), model_label(one.baseline)
        result = f"{names[0]} is better" if one.significant else "no significant difference"
        values = (one.candidate_mean, one.baseline_mean, one.difference, one.low, one.high)
        rows.append((*names, *values, round(one.adjusted_p_value, 4), result))
    table = Table(
        key="tests",
        title=f"{label}, test",
        note="Paired tests over users. p-values are corrected for the number of "
        "comparisons; below 0.05 is significant. Intervals are not corrected, so one may exclude "
        "0 where p is above 0.05.",
        columns=[
            *texts("model", "against"),
            *numbers(label, "the other's", format="metric"),
            *numbers("difference", "low", "high", format="signed"),
            *numbers("p, corrected"),
            *texts("result"),
        ],
        rows=rows,
    )
    return table if rows else None


def _beyond(data: ReportData) -> Table | None:
    measured = {one: data.measured("test").models[one].beyond_accuracy for one in data.models}
    names = by_fame({name for values in measured.values() for name in values})
    columns = texts("model")
    for name in names:
        columns += numbers(metric_label(name), note=metric_meaning(name))
    table = Table(
        key="beyond-accuracy",
        title="Lists on test",
        note="Point at a heading for its definition; a dash: not defined.",
        columns=columns,
        rows=[(model_label(one), *map(values.get, names)) for one, values in measured.items()],
    )
    return table if names else None


def _blend(data: ReportData) -> Iterator[Block | None]:
    for profile, blend in data.blends.items():
        line = (
            f"Profile {profile} is served by {method_label(blend['served'])}: {blend['reason']}. "
            f"{blend['num_found']:,} of {blend['num_queries']:,} validation users have their "
            f"held-out item in any list. Items without events: {describe_new_items(blend)}."
        )
        yield Words(lines=[line])
    yield blend_figure(data)


def _training(data: ReportData) -> Section:
    lines = []
    for curve in data.curves:
        if not curve.best_step:
            continue
        how = "ran out of time and " if curve.stopped_by_time else ""
        how = "stopped early and " if curve.stopped_early else how
        users = "held-out users" if curve.model == "ranked" else "validation"
        lines.append(
            f"{model_label(curve.model)} {how}kept step {curve.best_step:,} of "
            f"{curve.num_steps:,}, the best on {users}."
        )
    blocks = [Words(lines=lines) if lines else None, curve_figure(data)]
    return Section(key="training", title="Training", blocks=[one for one in blocks if one])


def _data(data: ReportData) -> Section:
    facts = data.features
    events, users, items = (facts[name] for name in ("events", "users", "items"))
    missing = facts["items_without_catalogue"]
    catalogue = f"; {missing:,} are not in the catalogue" if missing else ""
    labels = facts["labels"]
    rows = [
        ("events", f"{events:,} kept of {facts['rows_in']:,} rows"),
        ("users", f"{users:,}, {events / users:.1f} events each on average"),
        ("items", f"{items:,}, {events / items:.1f} events each on average{catalogue}"),
        ("density", f"{100 * events / users / items:.2g}% of user-item pairs"),
        ("time", time_span(data)),
        ("training", f"{labels['train']:,} events"),
        ("held out", f"{labels['validation']:,} for validation, {labels['test']:,} for test"),
        *((f"not used: {reason}", f"{count:,} rows") for reason, count in lost_rows(data)),
    ]
    table = Table(
        key="kept",
        title="Data",
        note="Quarantined rows are in build_features/quarantine/ of the workspace, each with its "
        "reason.",
        columns=texts("of", "count"),
        rows=rows,
    )
    return Section(key="data", title="Data", blocks=[table])


def _reproduce(data: ReportData) -> Section:
    made = data.provenance
    files = "" if made.dataset else ", set your files in its [data] table"
    rows = [
        ("evaluation", made.evaluation_digest),
        ("prepared data", made.data_digest),
        *((f"raw file: {name}", digest) for name, digest in made.raw_files.items()),
        *made.versions.items(),
    ]
    columns = texts("of", "digest or version")
    digests = Table(
        key="made-of", title="Digests and versions", note="", columns=columns, rows=rows
    )
    return Section(
        key="reproduce",
        title="Reproduce",
        note=f"Save the settings as run.toml{files} and run: recsys run run.toml. Equal "
        "data, settings and code give this file byte for byte, except for the number of looks at "
        "the test split.",
        blocks=[Code(key="toml", title="Settings of this run", text=made.settings), digests],
    )
