"""The page of a run's experts and adapters: the ranker's mixture, and adapters of domains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, stage_folders, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import Block, Cell, Page, Section, Table, Words, with_origins
from pipelines.pages.ranker import ranker_section, routing_section
from pipelines.pages.report_data import RANKER, read_ranker, routings_of

TITLE = "Experts and adapters"
STAGE, OUTCOMES = "train_ranker", "adapt_domains/adapters.json"
NO_RANKER = (
    "No ranker was trained in this run, or its measurements are not here. [ranker_training] "
    'enabled = true trains one, and [ranker] trunk = "sparse" gives it a mixture of experts; then '
    "recsys run."
)
NO_ADAPTERS = (
    "There are no domain adapters. Items or events need a column domain; then [adapter] "
    'domains = ["books"] adapts the released model in every run, and recsys release adapt --config '
    "shop.toml --domain books does it once."
)
USED_BY = (
    'Requests with "context": {"domain": "<name>"} use the domain\'s adapter; all others keep '
    "their results. recsys status lists the adapters that are served."
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
    places, problems = stage_folders(context, run), list[str]()
    lead, sections = _mixture(places, problems)
    adapters = Section(key="adapters", title="Adapters", blocks=_adapters(places, problems))
    return Page(
        title=TITLE,
        lead=lead,
        blocks=[with_origins(one, [run.origin]) for one in (*sections, adapters)],
        controls=run_control(context, run),
        notices=problems,
    )


def _mixture(places: Sequence[Path], problems: list[str]) -> tuple[str, list[Section]]:
    """State whether experts are used evenly, and show the ranker and its routers."""
    lead, lines = "This run has no experts.", [NO_RANKER]
    files = [path for place in places for path in sorted((place / STAGE).glob(f"*/{RANKER}"))]
    # Of several orders of tied times the given one is released.
    for path in sorted(files, key=lambda path: path.parent.name != "given")[:1]:
        try:
            ranker = read_ranker(path.parent.parent, path.parent.name)
        except (OSError, ValueError, LookupError, TypeError) as error:
            problems.append(f"The ranker cannot be read: {type(error).__name__}: {error}")
            break
        if ranker is not None and ranker["trunks"]:
            routings = routings_of(ranker)
            for own in routings[:1]:
                lead = (
                    f"{own['num_experts'] - own['dead_experts']} of {own['num_experts']} experts "
                    f"are used; the busiest has {max(own['load']):.1%} of the visits, "
                    f"{1 + own['max_violation']:.2f} times the mean."
                )
            return lead, [ranker_section(ranker), *map(routing_section, routings)]
        lines = [f"No ranker could be trained: {ranker['reason']}"] if ranker else lines
    return lead, [Section(key="ranker", title="Ranker", blocks=[Words(lines=lines, tone="note")])]


def _adapters(places: Sequence[Path], problems: list[str]) -> list[Block]:
    """List the adapters that a run trained, with the changes that the gate judged."""
    path = next((one / OUTCOMES for one in places if (one / OUTCOMES).exists()), None)
    if path is None:
        return [Words(lines=[NO_ADAPTERS])]
    lines, rows = [USED_BY], list[Sequence[Cell]]()
    try:
        for outcome in json.loads(path.read_bytes()):
            state = f"registered as {outcome['adapter']}"
            if refused := outcome.get("refused"):
                state = f"refused, so the base answers the domain. {refused}"
            lines.append(f"{outcome['domain']}: {state}")
            passed = {one["name"]: one["passed"] for one in outcome.get("verdicts", [])}
            failed = " ".join(name for name, is_good in passed.items() if not is_good)
            for one in outcome.get("changes", []):
                ends = (float(one[name]) for name in ("difference", "low", "high"))
                verdict = "refused" if one["name"] in failed else "allowed"
                users = str(one["name"]).replace("_", " ")
                rows.append((outcome["domain"], users, one["num_users"], *ends, verdict))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"adapters.json cannot be read: {type(error).__name__}: {error}")
    table = Table(
        key="changes",
        title="Changes by adapter",
        note="Of the metric on held-out users, over the domain's items alone, with paired 97.5% "
        "intervals. The gate wants a gain of the domain and allows slices what chance explains.",
        columns=[
            *texts("adapter of", "users"),
            *counts("count"),
            *numbers("change", "low", "high", format="signed"),
            *texts("gate"),
        ],
        rows=rows,
    )
    return [Words(lines=lines), *([table] if rows else [])]


ENTRY = PageEntry(
    name="experts",
    title=TITLE,
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
