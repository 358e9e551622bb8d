"""Decisions as tables and words: all of them, and one whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.dashboard.releases.folders import Folder
from pipelines.dashboard.releases.record import ALTERED, SIGNATURES, Decided, Record
from pipelines.pages.columns import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Link,
    LinkedCell,
    Origin,
    Section,
    Table,
    Words,
)
from pipelines.publishing.decisions import Decision
from pipelines.publishing.explain import advice_for, found_in, is_untested, result_of

AGAINST = "against"
"""In the names of checks that hold a version against its champion."""


def link_to(folder: Folder, version: str, label: str = "") -> Link:
    """Link to the decision on a version."""
    values = {"bundles": folder.key, "version": version}
    return Link(label=label or version, page="releases", parameters=values)


def verdicts_of(decision: Decision) -> list[Mapping[str, Any]]:
    """List the verdicts that are whole; who wrote them by hand may have left something out."""
    return [one for one in decision.verdicts if isinstance(one, dict) and "name" in one]


def why(decided: Decided) -> str:
    """Say in a line why it was decided so."""
    if decided.state == ALTERED:
        return decided.fault
    failed = [str(one["name"]) for one in verdicts_of(decided.decision) if not one.get("passed")]
    if failed:
        return "failed: " + ", ".join(failed)
    for one in verdicts_of(decided.decision):
        if is_untested(one):
            return f"{one['name']} was not tested: {one.get('reason', '')}"
    return str(decided.decision.words[-1]) if decided.decision.words else ""


def by_whom(decided: Decided) -> str:
    """Say what took the decision: the gate of a run, or a person."""
    if decided.decision.outcome in ("promoted", "rolled back"):
        return "a person"
    if decided.decision.outcome == "kept as challenger" and not verdicts_of(decided.decision):
        return "a person"
    return "the gate, overridden by a person" if decided.decision.forced else "the gate of a run"


def decisions_table(record: Record, folder: Folder) -> Table:
    """List every decision, the newest first."""
    rows: list[list[Cell | LinkedCell]] = []
    for one in reversed(record.decisions):
        decision, verdicts = one.decision, verdicts_of(one.decision)
        time = one.time
        version = str(decision.challenger)
        rows.append(
            [
                None if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}",
                LinkedCell(text=version, link=link_to(folder, version)),
                f"{decision.outcome}{' (forced)' if decision.forced else ''}",
                by_whom(one),
                SIGNATURES[one.state],
                len(verdicts) or None,
                sum(not verdict.get("passed") for verdict in verdicts) if verdicts else None,
                str(decision.champion) if decision.champion else None,
                why(one),
            ]
        )
    return Table(
        key="decisions",
        title="Decisions",
        note="Every release, refusal, promotion and rollback, the newest first. Each is a file "
        "that is signed where RECSYS_SIGNING_KEY is set and names the one before it. A version "
        "leads to its decision.",
        columns=[
            Column(label="time (UTC)", format="time"),
            *texts("version", "outcome", "decided by"),
            *texts("signature", note="NOT VALID: the file is not what was signed."),
            *counts("checks", "failed"),
            *texts("champion before", "why"),
        ],
        rows=rows,
        page_length=10,
        origins=folder.origins,
    )


def decision_section(decided: Decided, folder: Folder, earlier: Sequence[Decided]) -> Section:
    """Lay one decision out whole.

    Args:
        earlier: Other decisions on the same version.
    """
    decision = decided.decision
    blocks: list[Block] = [_head(decided, folder)]
    if decided.state != ALTERED:
        if decision.words:
            blocks.append(Words(lines=[str(line) for line in decision.words]))
        blocks += _gate(decided, folder, earlier)
    if earlier:
        lines = [
            f"{one.time:%Y-%m-%d %H:%M:%S}: {one.decision.outcome}; {why(one)}"
            for one in earlier
            if one.time is not None
        ]
        blocks.append(Words(lines=["Earlier decisions on this version:", *lines]))
    title = f"Decision on {decision.challenger}: {decision.outcome}"
    return Section(key="decision", title=title, blocks=blocks)


def _gate(decided: Decided, folder: Folder, earlier: Sequence[Decided]) -> Iterator[Block]:
    """Show what the gate measured; for a promotion by hand, when it released the version."""
    one = next(
        (one for one in (decided, *earlier) if one.written and verdicts_of(one.decision)), None
    )
    if one is None:
        return
    decision, verdicts = one.decision, verdicts_of(one.decision)
    if one is not decided:
        yield Words(lines=[f"The gate judged it at {decision.time}: {decision.outcome}."])
    yield from _power(decision)
    yield from _next_steps(decision)
    against = [verdict for verdict in verdicts if AGAINST in str(verdict["name"])]
    if against and decision.champion:
        title = f"Held against the champion {decision.champion}"
        note = "On the same queries, and by slice where a slice has enough users."
        yield _verdicts("against", title, note, against, folder.origins)
    note = "What the gate measured, what it allows, and why; failed checks first."
    yield _verdicts("verdicts", "All checks", note, verdicts, folder.origins)


def _head(decided: Decided, folder: Folder) -> Words:
    decision = decided.decision
    lines = [
        f"Taken at {decision.time or 'an unknown time'} by {by_whom(decided)}; champion before "
        f"it: {decision.champion or 'none'}.",
        f"File {decided.name}; signature: {SIGNATURES[decided.state]}.",
    ]
    tone = "plain"
    if decided.state == ALTERED:
        tone = "bad"
        lines.append(
            f"What it says cannot be trusted, so only its outcome is shown: {decided.fault}"
        )
    elif decision.outcome == "refused":
        tone = "bad"
    links = []
    if isinstance(decision.champion, str):
        links.append(link_to(folder, decision.champion, f"decision on {decision.champion}"))
    return Words(lines=lines, tone="bad" if tone == "bad" else "plain", links=links)


def _power(decision: Decision) -> Iterator[Words]:
    power = decision.power if isinstance(decision.power, dict) else {}
    found = power.get("found_in_4_of_5_cases")
    if isinstance(found, float):
        yield Words(
            lines=[
                f"The smallest difference in {power.get('metric')} that {power.get('users')} users "
                f"reliably show (4 times in 5) is {abs(found):.1%}; smaller ones may go unseen."
            ],
            tone="note",
        )


def _next_steps(decision: Decision) -> Iterator[Words]:
    failed = [str(one["name"]) for one in verdicts_of(decision) if not one.get("passed")]
    if failed:
        lines = [f"{name}: {advice_for(name)}." for name in failed]
        yield Words(lines=["What to do next:", *lines], tone="note")


def _verdicts(
    key: str,
    title: str,
    note: str,
    verdicts: Sequence[Mapping[str, Any]],
    origins: Sequence[Origin],
) -> Table:
    order = ("FAILED", "not tested", "passed")
    ordered = sorted(verdicts, key=lambda one: order.index(result_of(one)))
    rows = [
        [
            str(one["name"]),
            result_of(one),
            _number(one.get("value")),
            _number(one.get("bound")),
            ""
            if one.get("passed")
            else found_in(_number(one.get("value")), _number(one.get("bound"))),
            str(one.get("reason", "")),
        ]
        for one in ordered
    ]
    return Table(
        key=key,
        title=title,
        note=note,
        columns=[
            *texts("check", "result"),
            *numbers("value", "bound", format="metric"),
            *texts("found", note="What is wrong with a failed one."),
            *texts("reason"),
        ],
        rows=rows,
        page_length=10,
        origins=origins,
    )


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]
