"""Page ``summary``: which of two to release, and why, by the release gate's rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipelines.dashboard.compare.blocks import (
    difference_row,
    difference_words,
    differences_chart,
    measures_table,
    warnings,
)
from pipelines.dashboard.compare.gate import (
    PairJudgement,
    judge_sides,
    recorded_answer,
)
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import SERVED, Side
from pipelines.dashboard.data.measures import read_measures
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
from pipelines.dashboard.data.slices import group_label, slice_label
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.runs.run import build as build_run
from pipelines.pages.charts import Row
from pipelines.pages.document import (
    Block,
    Cell,
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
    recorded = recorded_answer(sides[0].run, sides[1].run)
    blocks: list[Block] = [
        *reason_blocks(judged),
        words_section("sides", "What A and B are", map(about, "AB", sides)),
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
            words_section("rule", "How this is decided", rule(judged)),
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


def words_section(key: str, title: str, lines: Iterable[str], tone: Tone = "plain") -> Section:
    """Build a section of paragraphs."""
    return Section(key=key, title=title, blocks=[Words(lines=list(lines), tone=tone)])


def reason_blocks(judged: PairJudgement) -> list[Block]:
    """List the reasons, those for the other side apart."""
    decisive = [one.words for one in judged.reasons if one.speaks_for == judged.answer]
    against = [one.words for one in judged.reasons if one.speaks_for != judged.answer]
    title = "What speaks for the other side" if decisive else "What was seen"
    return [
        *([words_section("why", "Why", decisive, TONES[judged.answer])] if decisive else []),
        *([words_section("against", title, against)] if against else []),
    ]


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
    losses = judged.compared.losses
    lost = sum(one.harmed for one in losses)
    note = f"of {len(losses):,} with at least {MIN_SLICE_USERS} users, pairs of attributes included"
    tone: Tone = "bad" if lost else "plain"
    lost_tile = Tile(label="Slices shown to lose", value=f"{lost:,}", note=note, tone=tone)
    return [*found, *([lost_tile] if judged.overall else [])]


def links(judged: PairJudgement, sides: Sequence[Side], *, exported: bool) -> list[Link]:
    """Lead to what explains the answer."""
    pair = pair_parameters(*sides)
    metric, _, k = judged.config.deciding_metric.partition("@")
    found = [Link(label="All metrics, list lengths and slices", page="compare", parameters=pair)]
    for key in [] if exported else [*judged.slices("first"), *judged.slices("second")][:3]:
        chosen = {**pair, "group": key.partition("/")[0], "metric": metric, "k": k}
        found.append(Link(label=f"Slice {slice_label(key)}", page="compare", parameters=chosen))
    run = {"run": sides[1].run.key} if sides[1].run.bundles else {}
    checks = Link(
        label="Every check of the gate, and other releases", page="releases", parameters=run
    )
    return [*found, *pair_links(sides), checks]


def slices_section(judged: PairJudgement, pairs: Pairs, sides: Sequence[Side]) -> Section:
    """Draw differences of all queries and of the main slices; the chart's table has all slices."""
    config, losses = judged.config, judged.compared.losses
    named = {*judged.slices("first"), *judged.slices("second")}
    drawn: list[Cell] = []
    rows: list[Row] = []

    def add(label: str, one: Paired, shown: str, *, is_drawn: bool) -> None:
        if one.champion > 0:
            drawn.extend([label] if is_drawn else [])
            rows.append(difference_row(label, "B", one, shown))

    for name, whole in judged.overall.items():
        add(f"All queries, {metric_label(name)}", whole, "", is_drawn=True)
    for loss in losses:
        shown = "; lost" if loss.harmed else "; gained" if loss.gained else "; not shown"
        is_drawn = loss.name in named or loss.name.partition("/")[0] in DRAWN
        add(slice_label(loss.name), loss.found, shown, is_drawn=is_drawn)
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
    groups = ", ".join(group_label(one) for one in pairs.slices.single)
    return Section(
        key="slices-section",
        title="For whom",
        note=f"Cut by {groups}, and by pairs of these.",
        blocks=[chart],
    )


def rule(judged: PairJudgement) -> list[str]:
    """Write the rule in words."""
    config = judged.config
    return [
        f"All queries: {metric_label(config.deciding_metric)} decides, each user compared with "
        f"themselves. B is better or worse if the interval excludes 0 at {config.confidence:.0%}; "
        f"a loss within {config.max_loss:.0%} is tolerated. What loses by "
        f"{metric_label(config.metric)}, in the first places, is refused too.",
        f"Slices: B is refused if a slice of at least {MIN_SLICE_USERS} users is shown to lose "
        f"more than {config.max_slice_loss:.0%}; over all slices together a false alarm has a "
        f"chance of {config.paired().slice_error:.0%}. Smaller slices can lose unseen.",
        f"Lists: B is refused if their coverage is below {config.gate.min_coverage:.0%} of A's, or "
        f"their novelty below {config.gate.min_novelty:.0%}. If nothing is shown, the cheaper one "
        "of two is preferred.",
        "The margins are those of [release] of B. The gate recorded its answer on queries that "
        "neither bundle's models had seen; this page has those whose answers both stored.",
    ]


ENTRY = PageEntry(
    name="summary",
    title="Summary",
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("runs",),
)
