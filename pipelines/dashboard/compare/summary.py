"""Page ``summary``: which of two bundles to release, and why, in one sentence and its reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipelines.dashboard.compare.blocks import (
    difference_chart,
    dot,
    interval_words,
    measures_table,
    origins,
    warnings,
)
from pipelines.dashboard.compare.gate import gate_answer, gate_section
from pipelines.dashboard.compare.page import pair_parameters
from pipelines.dashboard.context import Build, Context, PageEntry
from pipelines.dashboard.data.answers import SERVED, SPLITS, Side, Split, answers
from pipelines.dashboard.data.measures import Measures, measures_of
from pipelines.dashboard.data.paired import Pairs, pairs_of
from pipelines.dashboard.data.search import Search
from pipelines.dashboard.data.sides import (
    controls,
    default_pair,
    name_of,
    sides_of,
    suggest_runs,
)
from pipelines.dashboard.data.slices import label_of, label_of_group
from pipelines.dashboard.data.verdict import (
    Answer,
    Reason,
    Verdict,
    VerdictConfig,
    config_of,
    difference_words,
    judge,
)
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.pages.charts.shapes import Dot
from pipelines.pages.columns import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Link,
    LinkedCell,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Tone,
    Words,
)
from pipelines.pages.wording import metric_label, model_label
from recsys.evaluation.paired import Decision, Paired

SHOWN = ("ndcg@10", "recall@10", "ndcg@50", "recall@50")
"""Metrics that are drawn over all queries."""
DRAWN = ("user_activity", "item_popularity", "domain")
"""Slicings whose slices are drawn, whatever they show."""
MIN_USERS = 20
"""Of a slice that is drawn."""
DECISION_TONES: dict[Decision, Tone] = {
    "better": "good",
    "worse": "bad",
    "not enough evidence": "plain",
}
TONES: dict[Answer, Tone] = {"second": "good", "first": "bad", "no evidence": "note"}


TOO_FEW = (
    "Measure both on the same events: recsys run with the settings of A on the data of B, into a "
    "folder of its own (-w). Settings that are to serve for long are compared by recsys backtest, "
    "as time passes; lists that were served, by recsys ope and by an experiment.",
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What the page is about: A is what is served, or comes first; B would take its place."""

    sides: tuple[Side, Side]
    names: tuple[str, str]
    pairs: Pairs
    measures: tuple[Measures, Measures]
    config: VerdictConfig
    verdict: Verdict


def build(context: Context, query: Query, one_run: Build) -> Page:
    """Make the page; without a pair it is the page of a run, which says how to get a pair.

    Args:
        one_run: Makes the page of a run.
    """
    split: Split = "validation" if query.choice("split", SPLITS, "test") == "validation" else "test"
    if len(query.several("runs", at_most=2)) < 2 and not query.text("first"):
        run = query.text("run") or query.text("runs")
        try:
            runs = default_pair(context, split, run)
        except NotFoundError as error:
            page = one_run(context, Query.of(run=run or None))
            return replace(page, notices=[*page.notices, str(error)])
        query = Query.of(runs=tuple(one.key for one in runs))
    found = sides_of(context, query, split, at_most=2)
    pair = pair_of(context, (found[0], found[1]), split)
    names = [f"{letter}, {name}" for letter, name in zip("AB", pair.names, strict=True)]
    answer = sentence(pair)
    if decided := gate_answer(pair.sides[0].run, pair.sides[1].run):
        answer = f"{decided.rstrip('.')}. By the stored answers of both: {answer}"
    blocks: list[Block] = [
        *reason_blocks(pair.verdict),
        Section(
            key="sides",
            title="What A and B are",
            blocks=[Words(lines=[about(*one) for one in zip("AB", pair.sides, strict=True)])],
        ),
        Tiles(tiles=tiles(pair)),
        Words(lines=["What to look at next:"], links=links(pair, exported=context.exported)),
    ]
    if not pair.verdict.overall:
        blocks.append(Words(lines=TOO_FEW, tone="note"))
    if pair.verdict.overall:
        blocks += [
            Section(key="overall", title="Over all queries", blocks=[overall_chart(pair)]),
            slices_section(pair),
        ]
    blocks += [
        Section(
            key="beside",
            title="Beside accuracy",
            blocks=[measures_table(pair.measures, names, pair.sides)],
        ),
        gate_section(pair.sides, pair.pairs.known.num_users),
        Section(
            key="rule",
            title="How this is decided",
            blocks=[Words(lines=rule(pair.verdict, pair.config))],
        ),
    ]
    return Page(
        title="Which to release, and why",
        lead=answer,
        blocks=blocks,
        controls=controls(context, pair.sides, split, at_most=2),
        notices=[*warnings(pair.pairs.known, names), *pair.pairs.slicings.problems],
    )


def pair_of(context: Context, sides: tuple[Side, Side], split: Split) -> Pair:
    """Judge two sides; kept until their files change."""
    pairs = pairs_of(context, sides, split)
    measures = (measures_of(context, sides[0], split), measures_of(context, sides[1], split))
    files = [path for one in sides for path in answers(one.run, split).files]
    config = config_of(sides[1].run.config)
    named = ((one.run.key, one.model) for one in sides)
    key = ("verdict", split, *named, repr(measures), repr(config))
    verdict = context.cache.get(key, files, lambda: judge(pairs, 0, 1, measures, config))
    return Pair(
        sides=sides,
        names=(name_of(sides[0], sides), name_of(sides[1], sides)),
        pairs=pairs,
        measures=measures,
        config=config,
        verdict=verdict,
    )


def sentence(pair: Pair) -> str:
    """Answer in one sentence."""
    verdict, config = pair.verdict, pair.config
    a, b = f"A ({pair.names[0]})", f"B ({pair.names[1]})"
    if verdict.answer == "no evidence":
        if not verdict.overall:
            return f"No evidence: too few common queries to choose between {a} and {b}."
        metrics = [
            f"{one.relative_detectable:.1%} in {metric_label(metric)}"
            for metric, one in verdict.overall.items()
            if math.isfinite(one.relative_detectable)
        ]
        kept = (
            f"a loss of more than {config.margin:.0%} in {metric_label(config.deep)} with B is "
            "excluded"
            if verdict.not_worse
            else "the smallest differences that these users reliably show are "
            + " and ".join(metrics or ["not known"])
        )
        return f"No evidence that {a} or {b} is better: {default_words(pair)}; {kept}."
    release = f"Release {b}" if verdict.answer == "second" else f"Keep {a}"
    return f"{release}: {because(verdict)}."


def default_words(pair: Pair) -> str:
    """Say what to do where nothing is shown: nothing is changed without a reason."""
    for letter, side in zip("AB", pair.sides, strict=True):
        if "served" in side.run.tags:
            return f"keep {letter}, which is served"
    return "keep A"


def because(verdict: Verdict) -> str:
    """Give the decisive reasons in a clause."""
    worse = verdict.answer == "first"
    clauses = []
    kinds = [one.kind for one in verdict.decisive]
    if "overall" in kinds:
        clauses.append("B is worse over all queries" if worse else "B is better over all queries")
    slices = [label_of(one.slice) for one in verdict.decisive if one.slice][:2]
    if slices:
        change = "loses in" if worse else "gains in"
        clauses.append(f"B {change} the slice {' and the slice '.join(slices)}")
    if "coverage" in kinds:
        clauses.append(
            "B's lists collapse onto a small part of the catalogue"
            if worse
            else "B's lists cover much more of the catalogue"
        )
    if not clauses and "cost" in kinds:
        clauses.append(
            "B costs more and nothing is shown to be gained"
            if worse
            else "B costs less and is shown to lose no more than the margin"
        )
    against = [one.kind for one in verdict.against]
    if worse and "overall" in against:
        clauses.append("though it is better over all queries")
    elif worse and "slice" in against:
        clauses.append("though others gain")
    elif worse and not {"overall", "cost"} & {*kinds}:
        clauses.append("and nothing is shown to be gained over all queries")
    return ", ".join(clauses)


def about(letter: str, side: Side) -> str:
    """Say what a side is."""
    run = side.run
    time = "" if run.time is None else f" of {run.time:%Y-%m-%d %H:%M} UTC"
    state = "".join(f", {run.tags[tag]}" for tag in ("decision",) if tag in run.tags)
    served = ", served now" if "served" in run.tags else ""
    model = "" if side.model == SERVED else f", {model_label(side.model)}"
    return f"{letter} is {run.kind} {run.name}{time}{model}{state}{served}."


def reason_blocks(verdict: Verdict) -> list[Block]:
    """List the reasons, those against apart."""
    decisive, against = verdict.decisive, verdict.against
    found: list[Block] = []
    if decisive:
        tone = TONES[verdict.answer]
        found.append(
            Section(key="why", title="Why", blocks=[Words(lines=words(decisive), tone=tone)])
        )
    if against:
        title = "What speaks for the other side" if decisive else "What was seen"
        found.append(Section(key="against", title=title, blocks=[Words(lines=words(against))]))
    if verdict.search and verdict.search.lost and verdict.search.gained:
        found.append(Words(lines=[divided(verdict.search)], tone="note"))
    return found


def divided(search: Search) -> str:
    """Say what to do where some users gain and others lose."""
    gained, lost = search.gained[0].label, search.lost[0].label
    return (
        f"Gains and losses divide: {gained} gains and {lost} loses. Look at what B changed for "
        f"{lost} (links below) and mend it before B is released to all; until then B can be "
        "tried on the others alone, in an experiment that is cut by this slice."
    )


def words(reasons: Sequence[Reason]) -> list[str]:
    """Take the words of reasons."""
    return [one.words for one in reasons]


def tiles(pair: Pair) -> list[Tile]:
    """Give the numbers that are read first."""
    found = []
    for metric, one in pair.verdict.overall.items():
        tone = DECISION_TONES[one.decision]
        low, high = one.relative_interval
        found.append(
            Tile(
                label=f"{metric_label(metric)}, A to B",
                value=f"{one.champion:.4f} to {one.challenger:.4f}",
                note=f"{one.relative:+.1%} ({low:+.1%} to {high:+.1%}); {detectable(one)}",
                tone=tone,
            )
        )
    known = pair.pairs.known
    found.append(
        Tile(label="Users compared", value=f"{known.num_users:,}", note="same held-out items")
    )
    if pair.verdict.search is not None:
        number = pair.verdict.search.num_searched
        lost = len(pair.verdict.search.lost)
        found.append(
            Tile(
                label="Slices named as losing",
                value=f"{lost:,}",
                note=f"of {number:,} searched, pairs of attributes among them; "
                f"{pair.verdict.search.num_too_small:,} more have too few users to show anything",
                tone="bad" if lost else "plain",
            )
        )
    return found


def detectable(found: Paired) -> str:
    """Say which differences these users would show."""
    if not math.isfinite(found.relative_detectable):
        return "the smallest difference that they show is not known"
    return f"smallest difference reliably shown: {found.relative_detectable:.1%}"


def links(pair: Pair, *, exported: bool) -> list[Link]:
    """Lead to what explains the answer."""
    first, second = pair.sides
    parameters = pair_parameters(first, second)
    found = [
        Link(label="All metrics, list lengths and slices", page="compare", parameters=parameters)
    ]
    search = None if exported else pair.verdict.search
    for one in (*search.lost, *search.gained)[:3] if search else ():
        group = one.key.partition("/")[0]
        found.append(
            Link(
                label=f"Slice {one.label}",
                page="compare",
                parameters={**parameters, "group": group, "metric": "ndcg", "k": "50"},
            )
        )
    found.append(
        Link(label="Users won and lost, with their items", page="why", parameters=parameters)
    )
    found.append(Link(label="Releases and what decided them", page="releases"))
    if first.run.key != second.run.key:
        both = (first.run.key, second.run.key)
        settings = Link(
            label="Differences of their settings", page="differences", parameters={"runs": both}
        )
        found.append(settings)
    return found


def overall_chart(pair: Pair) -> Chart:
    """Show the difference over all queries by a few metrics."""
    paired = pair.config.paired()
    found = {
        metric: pair.verdict.overall.get(metric) or pair.pairs.overall(0, 1, metric, paired)
        for metric in SHOWN
    }
    timed = any(one.time_low is not None for one in found.values())
    return difference_chart(
        "overall",
        "B against A over all queries",
        f"Each line is where the true difference may lie ({paired.confidence:.0%} a metric"
        f"{', over users and over blocks of time, the wider of both' if timed else ', over users'})"
        f"; one that does not touch 0 shows it. {metric_label(pair.config.primary)} and "
        f"{metric_label(pair.config.deep)} decide.",
        [
            overall_dot(metric_label(metric), one)
            for metric, one in found.items()
            if one.champion > 0
        ],
        pair.sides,
    )


def overall_dot(label: str, found: Paired) -> Dot:
    """Mark a difference over all queries with the interval that decides, in percent."""
    low, high = found.relative_interval
    return Dot(
        label=label,
        series="B",
        mean=round(100 * found.relative, 3),
        low=round(100 * low, 3),
        high=round(100 * high, 3),
        note=f"{label}, B: {difference_words(found)}",
    )


def slice_rows(pair: Pair) -> tuple[list[list[Cell | LinkedCell]], list[Dot]]:
    """List single slices and those that the search named; draw the broad ones and the named."""
    rows: list[list[Cell | LinkedCell]] = []
    dots = []
    search = pair.verdict.search
    named = {one.key: "lost" for one in search.lost} if search else {}
    named |= {one.key: "gained" for one in search.gained} if search else {}
    explained = search.explained if search else {}
    also = {key: f"{kind}, as the named ones" for key, kind in explained.items()}
    crossed = {key.partition("/")[0] for key in named} - set(pair.pairs.slicings.groups)
    for group in (*pair.pairs.slicings.groups, *sorted(crossed)):
        slicing = pair.pairs.slicings.get(group)
        if slicing is None:
            continue
        found = pair.pairs.moments(0, 1, slicing, pair.config.slices.metric)
        for code, key in enumerate(slicing.keys):
            if not found.num_users[code] or (group in crossed and key not in named):
                continue
            users, name = int(found.num_users[code]), label_of(key)
            row: list[Cell | LinkedCell] = [
                name, users, float(found.first[code]), float(found.second[code]),
                float(found.difference[code]),
                interval_words(found, code, pair.config.slices.confidence),
                named.get(key) or also.get(key, "not shown"),
            ]  # fmt: skip
            rows.append(row)
            if (key in named or group in DRAWN) and users >= MIN_USERS and found.first[code] > 0:
                dots.append(dot(name, "B", found, code, pair.config.slices.confidence))
    return rows, dots


def slices_section(pair: Pair) -> Section:
    """Show for whom B is better or worse."""
    metric = pair.config.slices.metric
    rows, dots = slice_rows(pair)
    label = metric_label(metric)
    chart = difference_chart(
        "slices",
        f"B against A by slice, {label}",
        f"Users by activity, items by popularity and domain, and what the search named. A slice "
        f"vetoes B where a loss of more than {pair.config.slices.margin:.0%} is shown.",
        dots,
        pair.sides,
    )
    table = Table(
        key="slices-table",
        title=f"Slices, {label}",
        note=f"{pair.config.slices.confidence:.0%} intervals, of each slice by itself. The last "
        "column is by the search, corrected over all slices searched, pairs of attributes among "
        f"them (Holm; {pair.verdict.search.num_searched if pair.verdict.search else 0:,}): lost or "
        "gained where that is shown; 'as the named ones' where it is shown, but not without "
        "the users of a slice that is named above.",
        columns=[
            *texts("slice"),
            *counts("users"),
            *numbers("A", "B", format="metric"),
            *numbers("difference", format="signed"),
            *texts("interval", "shown by the search"),
        ],
        rows=rows,
        page_length=10,
        origins=origins(pair.sides),
    )
    groups = ", ".join(label_of_group(one) for one in pair.pairs.slicings.groups)
    return Section(
        key="slices-section",
        title="For whom",
        note=f"Cut by {groups}, and by pairs of these.",
        blocks=[chart, table],
    )


def rule(verdict: Verdict, config: VerdictConfig) -> list[str]:
    """Say the rule in words."""
    lines = [
        f"All queries: {metric_label(config.primary)} and {metric_label(config.deep)}, each user "
        f"compared with themselves. B is better or worse where the interval excludes 0 at "
        f"{config.confidence:.0%} for both metrics together, over users and over blocks of time.",
        f"Slices: B is refused where a slice of at least {config.slices.min_users} users is shown "
        f"to lose more than {config.slices.margin:.0%}; over all slices together a false alarm has "
        f"a chance of {config.slices.error:.0%}. Smaller slices can lose unseen.",
        f"Coverage: a change of the covered catalogue by {config.coverage:.0%} decides; cost does "
        f"where nothing else is shown and it differs by a factor of {config.cost:g}.",
        "The statistics speak of other users of the same kind: not of another seed, other weeks, "
        "or of what users would do with the lists. An online experiment does.",
    ]
    if verdict.overall:
        seen = [
            f"{metric_label(metric)} {difference_words(one)}"
            for metric, one in verdict.overall.items()
        ]
        lines.insert(1, "; ".join(seen) + ".")
    return lines


def entry(one_run: Build) -> PageEntry:
    """Describe the page.

    Args:
        one_run: Makes the page that is shown while there is no pair.
    """
    return PageEntry(
        name="summary",
        title="Summary",
        build=partial(build, one_run=one_run),
        suggest={"runs": suggest_runs},
        keeps=("runs",),
    )
