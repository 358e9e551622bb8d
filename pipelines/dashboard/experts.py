"""The page of a run's experts and adapters: the ranker's mixture, and adapters of domains."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import color_of, counts, figure, interval_chart, numbers, texts
from pipelines.pages.document import Block, Page, Section, Table, Words, with_origins
from pipelines.pages.ranker import ranker_section, routing_section
from pipelines.pages.report_data import RANKER, Document, read_ranker, routings_of

TITLE = "Experts and adapters"
STAGE, OUTCOMES = "train_ranker", "adapt_domains/adapters.json"
COLORS = {"allowed": color_of(2), "refused": color_of(5)}
NO_RANKER = (
    "No ranker was trained in this run. [ranker_training] enabled = true trains one, and "
    '[ranker] trunk = "sparse" gives it a mixture of experts; then recsys run.'
)
NO_MEASUREMENTS = (
    "A bundle holds no measurements of its ranker, and those of the run that made it are not here. "
    "Choose a run."
)
NO_ADAPTERS = (
    "There are no domain adapters. Items or events need a column domain; then [adapter] "
    'domains = ["books"] adapts the released model in every run, and recsys release adapt --config '
    "shop.toml --domain books does it once."
)
USED_BY = (
    'Requests with "context": {"domain": "<name>"} use the domain\'s adapter, and their '
    "served_by.adapter names it; all others keep their results to the last bit. A domain without "
    "an adapter is answered by the base. recsys status lists the adapters that are served."
)


def has_ranker(run: Run) -> bool:
    """Return whether a run trained a ranker or adapted a domain."""
    if run.kind != "workspace":
        return False
    return any((run.path / STAGE).glob(f"*/{RANKER}")) or (run.path / OUTCOMES).exists()


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    try:
        run = one_run(context, query, has_ranker, NO_RANKER)
    except NotFoundError as error:
        if query.text("run"):
            raise
        return Page(title=TITLE, lead=str(error), blocks=[Words(lines=[NO_ADAPTERS])])
    places = _places(context, run)
    lead, sections = _mixture(run, places)
    problems: list[str] = []
    adapters = list(_adapted(places, problems))
    words = Words(lines=[USED_BY if adapters else NO_ADAPTERS])
    adapters.append(Section(key="adapters", title="Adapters of domains", blocks=[words]))
    return Page(
        title=TITLE,
        lead=lead,
        blocks=[with_origins(one, [run.origin]) for one in (*sections, *adapters)],
        controls=run_control(context, run),
        notices=problems,
    )


def _places(context: Context, run: Run) -> list[Path]:
    """List the folders in which the stages of a run may be, the likeliest first."""
    if run.kind == "workspace":
        return [run.path]
    maker, kept = context.stores.maker(run), context.stores.kept_stages(run)
    if maker is None or kept is None:
        return []
    return [kept, maker.path] if maker.bundles[:1] == (kept.name,) else [kept]


def _mixture(run: Run, places: list[Path]) -> tuple[str, list[Section]]:
    """State whether experts are used evenly, and show trunks and routers."""
    missing = NO_MEASUREMENTS if run.kind == "bundle" else NO_RANKER
    for place in places:
        orders = sorted(path.parent.name for path in (place / STAGE).glob(f"*/{RANKER}"))
        if not orders:
            continue
        try:
            ranker = read_ranker(place / STAGE, "given" if "given" in orders else orders[0])
        except (OSError, ValueError, LookupError, TypeError) as error:
            missing = f"The ranker's measurements cannot be read: {type(error).__name__}: {error}"
            break
        if ranker is not None and ranker["trunks"]:
            return _routed(ranker)
        if ranker is not None:
            missing = f"No ranker could be trained: {ranker['reason']}"
            break
    words = Words(lines=[missing], tone="note")
    return "This run has no experts.", [Section(key="ranker", title="Ranker", blocks=[words])]


def _routed(ranker: Document) -> tuple[str, list[Section]]:
    """Show the trunks, and of each router its balance and what its experts are for."""
    routings = routings_of(ranker)
    lead = "The ranker has no experts."
    if routings:
        own = routings[0]
        lead = (
            f"{own['num_experts'] - own['dead_experts']} of {own['num_experts']} experts are used; "
            f"the busiest has {max(own['load']):.1%} of the visits, "
            f"{1 + own['max_violation']:.2f} times the mean."
        )
    return lead, [ranker_section(ranker), *(routing_section(one) for one in routings)]


def _adapted(places: list[Path], problems: list[str]) -> Iterator[Section]:
    """Show the adapters that a run trained; adds what cannot be read to the problems."""
    path = next((one / OUTCOMES for one in places if (one / OUTCOMES).exists()), None)
    try:
        outcomes = [] if path is None else json.loads(path.read_bytes())
        if not isinstance(outcomes, list):
            raise ValueError("no list of outcomes")
    except (OSError, ValueError) as error:
        problems.append(f"adapters.json cannot be read: {error}")
        return
    for outcome in outcomes:
        try:
            domain = str(outcome["domain"])
            blocks = _outcome_blocks(domain, outcome)
            yield Section(key=f"adapter-{domain}", title=f"Adapter of {domain}", blocks=blocks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"an adapter's outcome cannot be read: {type(error).__name__}: {error}")


def _outcome_blocks(domain: str, outcome: Mapping[str, Any]) -> list[Block]:
    """Show an adapter's verdict, its changes with intervals, and the gate's checks."""
    words = Words(lines=[f"Passed the gate, registered as {outcome['adapter']}."], tone="good")
    if refused := outcome.get("refused"):
        words = Words(lines=[f"Refused; the base answers the domain. {refused}"], tone="bad")
    verdicts = outcome.get("verdicts", [])
    passed = {str(one["name"]).partition(" of ")[2]: bool(one["passed"]) for one in verdicts}
    rows = [
        (
            str(one["name"]).replace("_", " "),
            one["num_users"],
            *(float(one[name]) for name in ("difference", "low", "high")),
            "allowed" if passed.get(str(one["name"]), True) else "refused",
        )
        for one in outcome.get("changes", [])
    ]
    harmed = ", ".join(row[0] for row in rows if row[-1] == "refused")
    chart = figure(
        interval_chart,
        f"changes-{domain}",
        f"{domain}: {rows[0][2] if rows else 0:+.4f} over the base"
        + (f"; the gate refuses {harmed}" if harmed else ""),
        "Change of the metric on held-out users, over the domain's items alone, with paired "
        "97.5% intervals. The gate wants a gain of the domain and allows slices what chance "
        "explains.",
        [
            *texts("users"),
            *counts("count"),
            *numbers("change", "low", "high", format="signed"),
            *texts("gate"),
        ],
        rows,
        "label - mean low high series",
        colors={name: COLORS[name] for name in COLORS if name in {row[-1] for row in rows}},
        x_title="change of the metric",
        rule_at=0,
    )
    checks = Table(
        key=f"verdicts-{domain}",
        title=f"{domain}: the gate's verdicts",
        note="A check passes if its value reaches the bound.",
        columns=[
            *texts("check"),
            *numbers("value", "bound", format="metric"),
            *texts("passed", "why"),
        ],
        rows=[
            (
                *(one["name"], one["value"], one["bound"]),
                *("yes" if one["passed"] else "no", one.get("reason", "")),
            )
            for one in verdicts
        ],
    )
    return [words, *([chart] if rows else []), *([checks] if verdicts else [])]


ENTRY = PageEntry(
    name="experts",
    title=TITLE,
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
