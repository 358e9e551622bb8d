"""What the release gate decided on a side, as its decision file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.dashboard.data.answers import Side
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Link, Section, Words
from pipelines.publishing.decisions import Decision, decision_on
from pipelines.publishing.explain import result_of

DECIDING = ("against the champion", "protected slices", "above popularity", "on its own data")
"""Parts of the names of verdicts that speak of quality; the others are of the bundle."""
UNDECIDED = (
    "No release gate has decided on these: it decides where recsys run has a champion to hold a "
    "new bundle against."
)


def gate_section(sides: Sequence[Side], num_users: int = 0) -> Section:
    """Say what was decided on the last of the sides that has a decision.

    Args:
        sides: Of the page.
        num_users: Users compared on the page, who are not those of the gate; 0 for none.
    """
    decisions = ((side.run, _decision(side.run)) for side in reversed(sides))
    run, found = next(((run, one) for run, one in decisions if one), (None, None))
    if run is None or found is None:
        return Section(key="gate", title="The release gate", blocks=[Words(lines=[UNDECIDED])])
    lines = [
        f"{found.time[:16].replace('T', ' ')} UTC: bundle {found.challenger} was {found.outcome}; "
        f"{found.champion or 'nothing'} was served before.",
        *found.words,
        *(
            f"{one['name']}: {result_of(one)}, {one.get('reason', '')}"
            for one in found.verdicts
            if not one["passed"] or any(part in one["name"] for part in DECIDING)
        ),
    ]
    if num_users:
        lines.append(
            f"The gate compares on queries that neither bundle's models had seen when it decided; "
            f"this page compares {num_users:,} users by the answers that both runs stored. The "
            "numbers of queries differ for that reason."
        )
    decided = {"run": run.key, "version": str(found.challenger)}
    words = Words(
        lines=lines,
        tone="bad" if found.failed else "plain",
        links=[Link(label="Every check of this release", page="releases", parameters=decided)],
    )
    return Section(key="gate", title="What the release gate decided", blocks=[words])


def gate_answer(first: Run, second: Run) -> str:
    """State what the gate decided on the second in place of the first; empty if it has not."""
    found = _decision(second)
    champion = (found.champion or "").partition("+")[0] if found else ""
    if found is None or champion not in first.bundles:
        return ""
    # Those on all queries name the interval and the power; failed ones, the slice that lost.
    reasons = [
        f"{one['name']}: {one.get('reason', '')}{margin_of(one)}"
        for one in found.verdicts
        if not one["passed"] or one["name"].endswith("against the champion on the same queries")
    ]
    why = "; ".join([*found.words[:1], *reasons])
    return f"The release gate decided on this pair: B was {found.outcome}" + (why and f": {why}")


def margin_of(verdict: Mapping[str, Any]) -> str:
    """Format the loss that ``[release]`` tolerates."""
    bound = verdict.get("bound")
    is_loss = "against the champion" in verdict["name"] and isinstance(bound, float)
    return f" (margin {bound:+.1%})" if is_loss else ""


def _decision(run: Run) -> Decision | None:
    if not run.bundles:
        return None
    try:
        written = decision_on(run.bundles_folder, run.bundles[0], None)
    except (OSError, ValueError):
        return None
    return None if written is None else written.decision
