"""Page ``summary``: which of two to release, and why, by the release gate's rule; what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.dashboard.compare.compare import (
    difference_row,
    difference_words,
    differences_chart,
    measures_table,
    warnings,
)
from pipelines.dashboard.compare.gate import PairJudgement, judge_sides, recorded_answer
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import Side, read_measures
from pipelines.dashboard.data.pairs import Pairs, join_pairs
from pipelines.dashboard.data.sides import (
    choose_sides,
    controls,
    default_pair,
    pair_links,
    pair_parameters,
    side_name,
    suggest_runs,
)
from pipelines.dashboard.data.slices import slice_label
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.runs.run import build as build_run
from pipelines.dashboard.runs.runs import about, settings_section
from pipelines.pages.charts import Row
from pipelines.pages.document import Block, Cell, Link, Page, Section, Tile, Tiles, Tone, Words
from pipelines.pages.wording import metric_label
from pipelines.publishing.comparison import MIN_SLICE_USERS, format_default

DRAWN = ("user_activity", "item_popularity", "domain")
"""Slicings whose slices are drawn, even if nothing is shown."""
TONES: dict[str, Tone] = {
    "better": "good",
    "worse": "bad",
    "second": "good",
    "first": "bad",
    "no evidence": "note",
}
RULE = (
    "By the rule of the release gate with the margins of [release] of B (docs/release.md), on the "
    "queries whose answers both stored."
)
TOO_FEW = (
    "Measure both on the same events: recsys run with the settings of A on the data of B, into a "
    "folder of its own (--set workspace=...).",
)


def build(context: Context, query: Query) -> Page:
    """Build the page; without a pair it is the page of a run, which tells how to get a pair."""
    if len(query.several("runs", at_most=2)) < 2 and not query.text("first"):
        run = query.text("run") or query.text("runs")
        try:
            runs = default_pair(context, run)
        except NotFoundError as error:
            page = build_run(context, Query.of(run=run or None))
            return replace(page, notices=[*page.notices, str(error)])
        query = Query.of(runs=tuple(one.key for one in runs))
    sides = choose_sides(context, query, at_most=2)
    pairs = join_pairs(context, sides)
    measures = (read_measures(context, sides[0]), read_measures(context, sides[1]))
    judged = judge_sides(context, sides, pairs, measures)
    names = [f"{letter} ({side_name(one, sides)})" for letter, one in zip("AB", sides, strict=True)]
    pair = pair_parameters(*sides)
    of_run = {"run": sides[1].run.key} if sides[1].run.bundles else {}
    links = [
        Link(label="All metrics, list lengths and slices", page="compare", parameters=pair),
        *pair_links(sides),
        Link(
            label="Every check of the gate, and other releases", page="releases", parameters=of_run
        ),
    ]
    recorded = recorded_answer(sides[0].run, sides[1].run)
    blocks: list[Block] = [
        *reason_sections(judged),
        Tiles(tiles=tiles(judged, pairs)),
        Words(lines=[*map(about, "AB", sides), RULE], links=links),
    ]
    if judged.overall:
        blocks.append(slices_section(judged, sides))
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
            settings_section(sides[0].run, sides[1].run),
        ],
        controls=controls(context, sides, at_most=2),
        notices=[*warnings(pairs, names), *pairs.slices.problems],
    )


def sentence(judged: PairJudgement, names: Sequence[str]) -> str:
    """Write the answer in one sentence."""
    a, b = names
    if judged.answer != "no evidence":
        release = f"Release {b}" if judged.answer == "second" else f"Keep {a}"
        decisive = [one.clause for one in judged.reasons if one.speaks_for == judged.answer]
        return f"{release}: {', '.join([*dict.fromkeys(decisive)][:3])}."
    if not judged.overall:
        return f"No evidence: too few common queries to choose between {a} and {b}."
    return f"No evidence that {a} or {b} is better: {format_default(judged.config)}."


def reason_sections(judged: PairJudgement) -> list[Section]:
    """List the reasons, those for the other side apart."""
    decisive = [one.words for one in judged.reasons if one.speaks_for == judged.answer]
    against = [one.words for one in judged.reasons if one.speaks_for != judged.answer]
    title = "What speaks for the other side" if decisive else "What was seen"
    why = Words(lines=decisive, tone=TONES[judged.answer])
    found = [
        Section(key="why", title="Why", blocks=[why] if decisive else []),
        Section(key="against", title=title, blocks=[Words(lines=against)] if against else []),
    ]
    return [one for one in found if one.blocks]


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
    users = f"{pairs.num_users:,}"
    found.append(Tile(label="Users compared", value=users, note="same held-out items"))
    if judged.overall:
        lost = sum(one.harmed for one in judged.compared.losses)
        note = f"of {len(judged.compared.losses):,} with at least {MIN_SLICE_USERS} users"
        tone: Tone = "bad" if lost else "plain"
        found.append(Tile(label="Slices shown to lose", value=f"{lost}", note=note, tone=tone))
    return found


def slices_section(judged: PairJudgement, sides: Sequence[Side]) -> Section:
    """Draw differences of all queries and of the main slices; the chart's table has all slices."""
    config, losses = judged.config, judged.compared.losses
    named = {*judged.slices("first"), *judged.slices("second")}
    drawn: list[Cell] = []
    rows: list[Row] = []
    found = [
        (f"All queries, {metric_label(name)}", whole, "", True)
        for name, whole in judged.overall.items()
    ]
    for loss in losses:
        shown = "; lost" if loss.harmed else "; gained" if loss.gained else "; not shown"
        is_drawn = loss.name in named or loss.name.partition("/")[0] in DRAWN
        found.append((slice_label(loss.name), loss.found, shown, is_drawn))
    for label, one, shown, is_drawn in found:
        if one.champion > 0:
            drawn.extend([label] if is_drawn else [])
            rows.append(difference_row(label, "B", one, shown))
    chart = differences_chart(
        f"B against A, {metric_label(config.deciding_metric)} by slice",
        f"Each line is where the true difference may lie, at {config.confidence:.0%}. B is refused "
        f"if a loss of more than {config.max_slice_loss:.0%} is shown in a slice. The table has "
        f"all {len(losses):,} slices with at least {MIN_SLICE_USERS} users; its words end with "
        f"what is shown, corrected over all (Holm, {config.paired().slice_error:.0%}).",
        rows,
        sides,
        drawn=drawn,
    )
    return Section(key="slices-section", title="For whom", blocks=[chart])


ENTRY = PageEntry(
    name="summary", title="Summary", build=build, suggest={"runs": suggest_runs}, keeps=("runs",)
)
