"""What the release gate decided on a side, as its decision file says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.document import (
    Block,
    Cell,
    Column,
    Link,
    LinkedCell,
    Section,
    Table,
    Words,
)
from pipelines.dashboard.evidence.per_user import Side
from pipelines.dashboard.runs.run import Run
from pipelines.publishing.decisions import Written, decision_on

DECIDING = ("against the champion", "protected slices", "above popularity", "on its own data")
"""Parts of the names of verdicts that speak of quality; the others are of the bundle."""


def gate_section(context: Context, sides: Sequence[Side]) -> Section:
    """Show the newest decision on any of the sides."""
    found = [
        (one, written)
        for one in reversed(sides)
        for version in one.run.bundles[:1]
        if (written := _decision(context, one.run, version)) is not None
    ]
    if not found:
        words = (
            "No release gate has decided on these: it decides where a run has a champion to be "
            "held against (recsys run with [release] in its settings)."
        )
        return Section(key="gate", title="The release gate", blocks=[Words(lines=[words])])
    blocks: list[Block] = []
    for one, written in found[:1]:
        decision = written.decision
        version, champion = decision.challenger, decision.champion or "nothing"
        lines = [
            f"{decision.time[:16].replace('T', ' ')} UTC: bundle {version} was {decision.outcome}; "
            f"{champion} was served before.",
            *decision.words,
        ]
        shown = [
            verdict
            for verdict in decision.verdicts
            if not verdict.get("passed") or any(part in verdict["name"] for part in DECIDING)
        ]
        rows: list[list[Cell | LinkedCell]] = [
            [
                verdict["name"],
                "passed" if verdict.get("passed") else "failed",
                verdict.get("value"),
                verdict.get("bound"),
                verdict.get("reason", ""),
            ]
            for verdict in shown
        ]
        tone = "plain" if not decision.failed else "bad"
        link = Link(label="Every check of every release", page="releases")
        blocks.append(Words(lines=lines, tone="bad" if tone == "bad" else "plain", links=[link]))
        blocks.append(
            Table(
                key="gate-table",
                title="Checks that failed, and those on quality",
                note=f"Of {len(decision.verdicts)} checks. A bound is what had to be kept.",
                columns=[
                    Column(label="check"),
                    Column(label="outcome"),
                    Column(label="value", numeric=True, format="metric"),
                    Column(label="bound", numeric=True, format="metric"),
                    Column(label="reason"),
                ],
                rows=rows,
                origins=[one.run.origin],
            )
        )
    return Section(key="gate", title="What the release gate decided", blocks=blocks)


def _decision(context: Context, run: Run, version: str) -> Written | None:
    for folder in _folders(context, run, version):
        try:
            written = decision_on(folder, version, None)
        except (OSError, ValueError):
            continue
        if written is not None:
            return written
    return None


def _folders(context: Context, run: Run, version: str) -> list[Path]:
    """List where a version's bundles may lie."""
    found = [
        bundle.path.parent
        for bundle in context.stores.bundles()
        if bundle.path is not None and version in bundle.bundles
    ]
    if run.path is not None:
        found.append(run.path / "bundles" if run.kind == "workspace" else run.path.parent)
    return list(dict.fromkeys(found))
