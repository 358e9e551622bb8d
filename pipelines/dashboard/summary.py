"""Page ``summary``: which of two to release, and why, by the release gate's rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pipelines.dashboard.compare.blocks import (
    difference_row,
    differences_chart,
    measures_table,
    rule,
    slices_table,
    warnings,
)
from pipelines.dashboard.compare.gate import (
    PairJudgement,
    difference_words,
    judge_pair,
    recorded_answer,
    release_config,
)
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import SERVED, Side, Split, answers, read_split
from pipelines.dashboard.data.measures import Measures, read_measures
from pipelines.dashboard.data.paired import Pairs, join_pairs
from pipelines.dashboard.data.sides import (
    choose_sides,
    controls,
    default_pair,
    pair_links,
    pair_parameters,
    side_name,
    suggest_runs,
)
from pipelines.dashboard.data.slices import group_label, slice_label
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.runs.run import build as build_run
from pipelines.pages.charts import Row
from pipelines.pages.document import (
    Block,
    Link,
    Page,
    Section,
    Tile,
    Tiles,
    Tone,
    Words,
)
from pipelines.pages.wording import metric_label, model_label
from pipelines.publishing.comparison import MIN_SLICE_USERS, format_default
from recsys.evaluation.paired import Paired

DRAWN = ("user_activity", "item_popularity", "domain")
"""Slicings whose slices are drawn, even if nothing is shown."""
TONES: dict[str, Tone] = {
    "better": "good",
    "worse": "bad",
    "second": "good",
    "first": "bad",
    "no evidence": "note",
}
TOO_FEW = (
    "Measure both on the same events: recsys run with the settings of A on the data of B, into a "
    "folder of its own (--set workspace=...). Settings that are to serve for long are compared by "
    "recsys backtest, as time passes; lists that were served, by recsys ope and by an experiment.",
)


def build(context: Context, query: Query) -> Page:
    """Build the page; without a pair it is the page of a run, which tells how to get a pair."""
    split = read_split(query)
    if len(query.several("runs", at_most=2)) < 2 and not query.text("first"):
        run = query.text("run") or query.text("runs")
        try:
            runs = default_pair(context, split, run)
        except NotFoundError as error:
            page = build_run(context, Query.of(run=run or None))
            return replace(page, notices=[*page.notices, str(error)])
        query = Query.of(runs=tuple(one.key for one in runs))
    sides = choose_sides(context, query, split, at_most=2)
    pairs = join_pairs(context, sides, split)
    measures = (read_measures(context, sides[0], split), read_measures(context, sides[1], split))
    judged = judgement(context, sides, pairs, measures, split)
    names = [f"{letter} ({side_name(one, sides)})" for letter, one in zip("AB", sides, strict=True)]
    recorded = recorded_answer(sides[0].run, sides[1].run)
    blocks: list[Block] = [
        *reason_blocks(judged),
        Section(
            key="sides",
            title="What A and B are",
            blocks=[Words(lines=[about(*one) for one in zip("AB", sides, strict=True)])],
        ),
        Tiles(tiles=tiles(judged, pairs)),
        Words(lines=["Next:"], links=links(judged, sides, exported=context.exported)),
    ]
    if judged.overall:
        blocks.append(slices_section(judged, pairs, sides))
    else:
        blocks.append(Words(lines=TOO_FEW, tone="note"))
    return Page(
        title="Which to release, and why",
        lead=recorded or sentence(judged, names),
        blocks=[
            *blocks,
            Section(
                key="beside",
                title="Beyond accuracy",
                blocks=[measures_table(measures, names, sides)],
            ),
            Section(key="rule", title="How this is decided", blocks=[Words(lines=rule(judged))]),
        ],
        controls=controls(context, sides, split, at_most=2),
        notices=[*warnings(pairs.known, names), *pairs.slicings.problems],
    )


def judgement(
    context: Context,
    sides: Sequence[Side],
    pairs: Pairs,
    measures: tuple[Measures, Measures],
    split: Split,
) -> PairJudgement:
    """Judge two sides; kept until their files change."""
    files = [path for one in sides for path in answers(one.run, split).files]
    config = release_config(context, sides[1].run)
    named = tuple((one.run.key, one.model) for one in sides)
    key = ("judgement", split, named, repr(measures), repr(config))
    return context.cache.get(key, files, lambda: judge_pair(pairs, measures, config))


def sentence(judged: PairJudgement, names: Sequence[str]) -> str:
    """Write the answer in one sentence."""
    a, b = names
    if judged.answer != "no evidence":
        release = f"Release {b}" if judged.answer == "second" else f"Keep {a}"
        decisive = [one.clause for one in judged.reasons if one.speaks_for == judged.answer]
        shown = [one for one in decisive if not one.startswith("B costs")] or decisive
        return f"{release}: {', '.join([*dict.fromkeys(shown)][:3])}."
    if not judged.overall:
        return f"No evidence: too few common queries to choose between {a} and {b}."
    by, config = judged.compared.by, judged.config
    if by is not None and by.not_worse:
        metric = metric_label(config.deciding_metric)
        kept = f"a loss of more than {config.max_loss:.0%} in {metric} with B is excluded"
    else:
        metrics = " and ".join(
            f"{one.relative_detectable:.1%} in {metric_label(metric)}"
            for metric, one in judged.overall.items()
            if math.isfinite(one.relative_detectable)
        )
        kept = (
            f"the smallest differences that these users reliably show are {metrics or 'not known'}"
        )
    return f"No evidence that {a} or {b} is better: {format_default(config)}; {kept}."


def about(letter: str, side: Side) -> str:
    """Describe a side."""
    run = side.run
    time = "" if run.time is None else f" of {run.time:%Y-%m-%d %H:%M} UTC"
    state = f", {run.tags['decision']}" if "decision" in run.tags else ""
    served = ", served now" if "served" in run.tags else ""
    model = "" if side.model == SERVED else f", {model_label(side.model)}"
    return f"{letter} is {run.kind} {run.name}{time}{model}{state}{served}."


def reason_blocks(judged: PairJudgement) -> list[Block]:
    """List the reasons, those for the other side apart."""
    decisive = [one.words for one in judged.reasons if one.speaks_for == judged.answer]
    against = [one.words for one in judged.reasons if one.speaks_for != judged.answer]
    found: list[Block] = []
    if decisive:
        words = Words(lines=decisive, tone=TONES[judged.answer])
        found.append(Section(key="why", title="Why", blocks=[words]))
    if against:
        title = "What speaks for the other side" if decisive else "What was seen"
        found.append(Section(key="against", title=title, blocks=[Words(lines=against)]))
    lost, gained = judged.slices("first"), judged.slices("second")
    if lost and gained:
        words = Words(
            lines=[
                f"Gains and losses divide: {slice_label(gained[0])} gains and "
                f"{slice_label(lost[0])} loses. Find out what B changed there before B is released "
                "to all; until then B can be tried on the others alone, in an experiment."
            ],
            tone="note",
        )
        found.append(words)
    return found


def tiles(judged: PairJudgement, pairs: Pairs) -> list[Tile]:
    """Show the numbers that are read first."""
    found = [
        Tile(
            label=f"{metric_label(metric)}, A to B",
            value=f"{one.champion:.4f} to {one.challenger:.4f}",
            note=f"{difference_words(one)}; smallest difference reliably shown: "
            f"{one.relative_detectable:.1%}",
            tone=TONES.get(one.decision, "plain"),
        )
        for metric, one in judged.overall.items()
    ]
    users = f"{pairs.known.num_users:,}"
    found.append(Tile(label="Users compared", value=users, note="same held-out items"))
    lost = sum(one.harmed for one in judged.compared.losses)
    if judged.overall:
        found.append(
            Tile(
                label="Slices shown to lose",
                value=f"{lost:,}",
                note=f"of {len(judged.compared.losses):,} with at least "
                f"{MIN_SLICE_USERS} users, pairs of attributes among them",
                tone="bad" if lost else "plain",
            )
        )
    return found


def links(judged: PairJudgement, sides: Sequence[Side], *, exported: bool) -> list[Link]:
    """Lead to what explains the answer."""
    parameters = pair_parameters(*sides)
    metric, _, k = judged.config.deciding_metric.partition("@")
    named = [] if exported else [*judged.slices("first"), *judged.slices("second")]
    slices = [
        Link(
            label=f"Slice {slice_label(key)}",
            page="compare",
            parameters={**parameters, "group": key.partition("/")[0], "metric": metric, "k": k},
        )
        for key in named[:3]
    ]
    return [
        Link(label="All metrics, list lengths and slices", page="compare", parameters=parameters),
        *slices,
        *pair_links(sides),
        Link(
            label="Every check of the gate, and other releases",
            page="releases",
            parameters={"run": sides[1].run.key} if sides[1].run.bundles else {},
        ),
    ]


def slices_section(judged: PairJudgement, pairs: Pairs, sides: Sequence[Side]) -> Section:
    """Draw differences by slice, all queries first."""
    config, losses = judged.config, judged.compared.losses
    label = metric_label(config.deciding_metric)
    named = {*judged.slices("first"), *judged.slices("second")}
    drawn: dict[str, Paired] = {
        f"All queries, {metric_label(name)}": one for name, one in judged.overall.items()
    }
    drawn |= {
        slice_label(one.name): one.found
        for one in losses
        if one.name in named or one.name.partition("/")[0] in DRAWN
    }
    rows: list[Row] = [
        difference_row(name, "B", (one.relative, *one.relative_interval), difference_words(one))
        for name, one in drawn.items()
        if one.champion > 0
    ]
    chart = differences_chart(
        "slices",
        f"B against A, {label} by slice",
        f"Each line is where the true difference may lie, at {config.confidence:.0%}. B is refused "
        f"if a loss of more than {config.max_slice_loss:.0%} is shown in a slice.",
        rows,
        sides,
    )
    table = slices_table(judged, sides)
    groups = ", ".join(group_label(one) for one in pairs.slicings.groups)
    return Section(
        key="slices-section",
        title="For whom",
        note=f"Cut by {groups}, and by pairs of these.",
        blocks=[chart, table],
    )


ENTRY = PageEntry(
    name="summary",
    title="Summary",
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("runs",),
)
