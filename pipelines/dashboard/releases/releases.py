"""Page ``releases``: the served version and since when, every decision, actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.releases.actions import ACTIONS, actions_section
from pipelines.dashboard.releases.folder import (
    Folder,
    Record,
    choose_folder,
    folders,
    read_record,
)
from pipelines.dashboard.workspaces.files import parse_time
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Link,
    LinkedCell,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
    select,
)
from pipelines.publishing.explain import advice_for, format_result, found_in, is_untested
from pipelines.publishing.released import Released, released_folder
from pipelines.tracking.decisions import ALTERED, CHALLENGER, CHAMPION, Decision, Written

TITLE = "Releases"
MAX_OPTIONS = 100
REFUSED = "refused"
RESULTS = ("FAILED", "not tested", "passed")
SIGNATURES = {
    "signed": "valid",
    "unsigned": "not signed",
    "not verified": "signed, not verified",
    ALTERED: "NOT VALID",
}
NOTHING = (
    "Nothing was released yet. A run writes a bundle and decides on it: recsys run "
    "shop.toml. To see the bundles of another folder, name it with --root or --bundles."
)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    folder = choose_folder(context, query)
    if folder is None:
        words = Words(lines=[NOTHING], tone="note")
        return Page(title=TITLE, lead="What is served, and why.", blocks=[words])
    record, there = read_record(context, folder), folder.versions()
    decided = [str(one.decision.challenger) for one in reversed(record.decisions)]
    version = query.text("version") or record.served or next(iter(decided), None)
    on = record.on(version)
    if version is not None and version not in there and not on:
        raise NotFoundError(
            f"there is no bundle and no decision of {version!r} in {folder.bundles}; see the table "
            "of decisions"
        )
    blocks: list[Block] = [tiles(folder, record)]
    if on:
        blocks.append(decision_section(on, folder))
    elif version is not None:
        lines = [f"There is no decision on {version}: it was released before decisions were."]
        blocks.append(Words(lines=lines, tone="note"))
    if not context.exported:
        offered = version if version in there else None
        blocks.append(actions_section(folder, offered, record.served, with_key=bool(context.key)))
    blocks += [*decisions_table(record, folder), *served_table(record, folder)]
    chosen = [] if version is None else [version]
    versions = list(dict.fromkeys([*chosen, *decided, *there]))[:MAX_OPTIONS]
    labels = {one: f"{one} (served)" if one == record.served else one for one in versions}
    known = {one.key: one.name for one in folders(context)[:200] or [folder]}
    controls = [
        select("bundles", "Workspace", folder.key, known, clears=("version", "run")),
        select("version", "Version", version or "", labels),
    ]
    return Page(
        title=TITLE,
        lead=lead(record),
        blocks=blocks,
        controls=() if context.exported else controls,
        notices=record.faults,
    )


def lead(record: Record) -> str:
    """Describe the served version and its challenger."""
    if record.served is None:
        return "Nothing is served."
    since = record.since(record.served)
    served = f"{record.served} is served" + (f" since {minute(since)}" if since else "")
    if record.challenger:
        return f"{served}; {record.challenger} waits as challenger."
    return f"{served}; there is no challenger."


def minute(time: datetime) -> str:
    """Format a time to the minute."""
    return f"{time:%Y-%m-%d %H:%M}"


def second(time: datetime | None) -> str | None:
    """Format a time for a column of times."""
    return None if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def link_to(folder: Folder, version: str, label: str = "") -> Link:
    """Link to the decision on a version."""
    values = {"bundles": folder.key, "version": version}
    return Link(label=label or version, page="releases", parameters=values)


def tiles(folder: Folder, record: Record) -> Tiles:
    """Show the aliases, and how many decisions there are."""
    found = []
    for label, version in (("Champion", record.served), ("Challenger", record.challenger)):
        since = record.since(version)
        found.append(
            Tile(
                label=label,
                value=version or "none",
                note=f"since {minute(since)} UTC" if since and version else "",
                tone="bad" if label == "Champion" and not record.is_there else "plain",
                link=link_to(folder, version) if version else None,
            )
        )
    states = [one.state for one in record.decisions]
    parts = [f"{n:,} {SIGNATURES[one]}" for one in reversed(SIGNATURES) if (n := states.count(one))]
    refused = sum(one.decision.outcome == REFUSED for one in record.decisions)
    until = trained_until(folder, record.served)
    return Tiles(
        tiles=[
            *found,
            Tile(label="Trained until", value=until, note="the latest event of its models (UTC)"),
            Tile(label="Decisions", value=f"{len(states):,}", note=f"{refused:,} refused"),
            Tile(
                label="Signatures",
                value=", ".join(parts) or "none",
                note="of the decisions' files",
                tone="bad" if ALTERED in states else "plain",
            ),
        ]
    )


def trained_until(folder: Folder, version: str | None) -> str:
    """Return the time of the latest event that a version knows."""
    if version is None or folder.workspace is None:
        return "not known"
    made = Released.read(released_folder(folder.workspace, version))
    if made is None or made.until is None:
        return "not known"
    return minute(datetime.fromtimestamp(made.until, UTC))


def served_table(record: Record, folder: Folder) -> list[Table]:
    """List which version was champion or challenger when, the newest first; none without any."""
    spans = [span for alias in (CHAMPION, CHALLENGER) for span in _spans(record, alias)]
    spans.sort(key=lambda span: span[2], reverse=True)
    table = Table(
        key="served",
        title="Which version was served when",
        note="The newest first; what is served now has no end. A challenger waits until it is "
        "promoted or replaced.",
        columns=[
            *texts("version", "as"),
            *(Column(label=label, format="time") for label in ("from", "until")),
        ],
        rows=[(version, alias, second(begin), second(end)) for version, alias, begin, end in spans],
        page_length=10,
        origins=folder.origins,
    )
    return [table] if spans else []


def _spans(record: Record, alias: str) -> Iterator[tuple[str, str, datetime, datetime | None]]:
    """List how long an alias named each version."""
    version, begin = "", datetime.now(UTC)
    for change in record.changes:
        time = parse_time(change.time)
        named = change.alias == alias
        # A version that becomes champion is no challenger any more.
        taken = alias == CHALLENGER and change.alias == CHAMPION and change.version == version
        if time is None or not (named or taken):
            continue
        if version:
            yield version, alias, begin, time
        version, begin = (change.version, time) if named else ("", begin)
    if version:
        yield version, alias, begin, None


def whole_verdicts(decision: Decision) -> list[Mapping[str, Any]]:
    """List the verdicts that are whole; a file written by hand may lack something."""
    return [one for one in decision.verdicts if isinstance(one, dict) and "name" in one]


def why(decided: Written) -> str:
    """Return the reason of a decision in a line."""
    verdicts = whole_verdicts(decided.decision)
    if decided.state == ALTERED:
        return decided.fault
    if failed := [str(one["name"]) for one in verdicts if not one.get("passed")]:
        return "failed: " + ", ".join(failed)
    for one in verdicts:
        if is_untested(one):
            return f"{one['name']} was not tested: {one.get('reason', '')}"
    return str(decided.decision.words[-1]) if decided.decision.words else ""


def by_whom(decided: Written) -> str:
    """Return who took the decision: the gate of a run, or a person."""
    outcome, forced = decided.decision.outcome, decided.decision.forced
    by_hand = outcome == "kept as challenger" and not whole_verdicts(decided.decision)
    if by_hand or outcome in ("promoted", "rolled back", "appended"):
        return "a person"
    if outcome in ("fetched", "taken from the registry"):
        return "the registry"
    return "the gate, overridden by a person" if forced else "the gate of a run"


def decisions_table(record: Record, folder: Folder) -> list[Table]:
    """List every decision, the newest first."""
    rows: list[list[Cell | LinkedCell]] = []
    for one in reversed(record.decisions):
        decision, verdicts = one.decision, whole_verdicts(one.decision)
        version = str(decision.challenger)
        rows.append(
            [
                second(parse_time(decision.time)),
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
    table = Table(
        key="decisions",
        title="Decisions",
        note="Every release, refusal, promotion and rollback, the newest first. Each is a file "
        "that is signed if RECSYS_SIGNING_KEY is set and names the one before it. A version leads "
        "to its decision.",
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
    return [table] if rows else []


def decision_section(on: Sequence[Written], folder: Folder) -> Section:
    """Show the newest decision on a version whole, and the verdicts of the gate."""
    decided, decision = on[0], on[0].decision
    altered = decided.state == ALTERED
    lines = [
        f"Taken at {decision.time or 'an unknown time'} by {by_whom(decided)}; champion before "
        f"it: {decision.champion or 'none'}.",
        f"{decided.name}; signature: {SIGNATURES[decided.state]}.",
    ]
    if altered:
        lines.append(f"Its text cannot be trusted, so only its outcome is shown: {decided.fault}")
    else:
        lines += [str(line) for line in decision.words]
    links = []
    if isinstance(decision.champion, str):
        links.append(link_to(folder, decision.champion, f"decision on {decision.champion}"))
    is_bad = altered or decision.outcome == REFUSED
    blocks: list[Block] = [Words(lines=lines, tone="bad" if is_bad else "plain", links=links)]
    judged = [one for one in on if one.state != ALTERED and whole_verdicts(one.decision)]
    if judged and not altered:
        # For a promotion by hand, what the gate found when it released the version.
        blocks += _gate(judged[0].decision, folder, is_earlier=judged[0] is not decided)
    title = f"Decision on {decision.challenger}: {decision.outcome}"
    return Section(key="decision", title=title, blocks=blocks)


def _gate(decision: Decision, folder: Folder, *, is_earlier: bool) -> Iterator[Block]:
    """Show what the gate measured, failed checks first."""
    if is_earlier:
        yield Words(lines=[f"The gate judged it at {decision.time}: {decision.outcome}."])
    verdicts = sorted(whole_verdicts(decision), key=lambda one: RESULTS.index(format_result(one)))
    yield Table(
        key="verdicts",
        title="All checks",
        note="What the gate measured, what it allows, and why; failed checks first.",
        columns=[
            *texts("check", "result"),
            *numbers("value", "bound", format="metric"),
            *texts("found", note="What is wrong with a failed one."),
            *texts("reason", "what to do"),
        ],
        rows=[_verdict(one) for one in verdicts],
        page_length=10,
        origins=folder.origins,
    )


def _verdict(one: Mapping[str, Any]) -> list[Cell]:
    value, bound = (
        float(number) if isinstance(number := one.get(name), (int, float)) else None
        for name in ("value", "bound")
    )
    name, reason = str(one["name"]), str(one.get("reason", ""))
    found = next_step = ""
    if not one.get("passed"):
        found, next_step = found_in(value, bound), advice_for(name)
    return [name, format_result(one), value, bound, found, reason, next_step]


ENTRY = PageEntry(name="releases", title=TITLE, build=build, keeps=("run",), actions=ACTIONS)
