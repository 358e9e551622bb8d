"""The ranker on a page: decision, calibration, and its experts."""

from __future__ import annotations

from pipelines.pages.charts import numbers, percent, shares, texts
from pipelines.pages.document import Block, Section, Table, Words
from pipelines.pages.report_data import Document

TRUNKS = {"sparse": "sparse mixture of experts", "dense": "dense"}
DENSE = (
    "The ranker has no router: every candidate visits all of its layers. [ranker] "
    'trunk = "sparse" makes a mixture of experts.'
)


def ranker_sections(ranker: Document | None) -> list[Section]:
    """Show what the ranker's order is worth, its calibration, and its router if it has one."""
    if ranker is None:
        return []
    order = "The ranker's order is served" if ranker["served"] else "The blend's order is served"
    lines = [f"{order}: {ranker['reason']}."]
    if ranker["tasks_reason"]:
        lines.append(f"Tasks: {', '.join(ranker['tasks'])}; {ranker['tasks_reason']}.")
    blocks: list[Block] = [Words(lines=lines)]
    measured = ranker["measured"]
    if measured:
        blocks.append(_calibration(measured))
    if measured and not measured["routing"]:
        lines.append(DENSE)
    whole = Section(
        key="ranker",
        title="Ranker",
        note=f"It reorders the first {ranker['num_candidates']} candidates of the fast blend. It "
        "is trained on each user's latest training events, with candidates from retrievers fitted "
        "without those events; validation decides whether it is served.",
        blocks=blocks,
    )
    return [whole, _routing(measured)] if measured and measured["routing"] else [whole]


def _calibration(trunk: Document) -> Table:
    names = ("auc", "predicted", "observed", "calibration_error")
    return Table(
        key="calibration",
        title="Calibration",
        note="Of the predicted probabilities, on validation, over all candidates. The trunk is "
        f"{TRUNKS.get(trunk['trunk'], trunk['trunk'])}.",
        columns=[
            *texts("task"),
            *numbers("AUC"),
            *numbers("predicted", "observed", "calibration error", format="metric"),
        ],
        rows=[(task, *(own[name] for name in names)) for task, own in trunk["tasks"].items()],
    )


def _routing(measured: Document) -> Section:
    """Show the balance of a router."""
    trunk, routing = measured["trunk"], measured["routing"]
    count, even = routing["num_experts"], 1 / routing["num_experts"]
    rows = [(f"expert {place}", share) for place, share in enumerate(routing["load"], start=1)]
    table = Table(
        key=f"experts-{trunk}",
        title="Visits of each expert",
        note=f"Even would be {percent(even)} of the visits each.",
        columns=[*texts("expert"), *shares("share of visits")],
        rows=rows,
    )
    return Section(
        key=f"mixture-{trunk}",
        title=f"Mixture of experts: {TRUNKS.get(trunk, trunk)}",
        note=f"One layer of {count} experts, {routing['top_k']} of each candidate; measured on "
        f"{routing['num_candidates']:,} candidates of validation: {routing['dead_experts']} "
        f"experts have none, the busiest has {1 + routing['max_violation']:.2f} times the mean.",
        blocks=[table],
    )
