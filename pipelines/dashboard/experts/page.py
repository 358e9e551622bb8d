"""The page of a run's experts and adapters."""

from __future__ import annotations

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.experts.adapters import NO_ADAPTERS, OUTCOMES, adapter_sections
from pipelines.dashboard.experts.mixture import (
    NO_RANKER,
    STAGE,
    Found,
    find_ranker,
    mixture_sections,
)
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Block, Page, Words
from pipelines.pages.rankers import FILE, RankerReport

TITLE = "Experts and adapters"


def has_ranker(run: Run) -> bool:
    """Whether a run trained a ranker, or adapted a domain."""
    if run.kind != "workspace":
        return False
    return any((run.path / STAGE).glob(f"*/{FILE}")) or (run.path / OUTCOMES).exists()


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    try:
        run = one_run(context, query, has_ranker, NO_RANKER)
    except NotFoundError as error:
        if query.text("run"):
            raise
        return Page(title=TITLE, lead=str(error), blocks=[Words(lines=[NO_ADAPTERS])])
    found, origins = find_ranker(context, run), [run.origin]
    blocks: list[Block] = []
    if isinstance(found, Found):
        blocks += mixture_sections(found, origins)
    else:
        blocks.append(Words(lines=[found], tone="note"))
    sections, problems = adapter_sections(context, run, origins)
    return Page(
        title=TITLE,
        lead=lead_of(found.report) if isinstance(found, Found) else "This run has no experts.",
        blocks=[*blocks, *sections],
        controls=run_control(context, run),
        notices=problems,
    )


def lead_of(report: RankerReport) -> str:
    """Say whether the ranker's experts are used evenly."""
    if not report.routings:
        return "The ranker has no experts."
    own = report.routings[0]
    used = own.num_experts - own.dead_experts
    most = max(own.load)
    return (
        f"{used} of {own.num_experts} experts are used; the busiest has {most:.1%} of the visits, "
        f"{1 + own.max_violation:.2f} times the mean."
    )


ENTRY = PageEntry(
    name="experts",
    title=TITLE,
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
