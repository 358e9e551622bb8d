"""Page ``releases``: the served version and since when, every decision, actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.releases.actions import ACTIONS, NO_KEY, actions_for
from pipelines.dashboard.releases.folder import (
    SIGNATURES,
    Folder,
    Record,
    choose_folder,
    folders,
    read_record,
    written_at,
)
from pipelines.dashboard.workspaces.files import parse_time
from pipelines.engine.formats import size
from pipelines.operations.collect import Keep, reasons_to_keep
from pipelines.operations.status import disk_bytes
from pipelines.pages.charts import Row, color_of, counts, figure, numbers, spans_chart, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
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
from pipelines.tracking.decisions import ALTERED, CHALLENGER, CHAMPION, LOG, Decision, Written
from serving.bundle.manifest import MANIFEST, bundle_directory

TITLE = "Releases"
MAX_OPTIONS = 100
SHOWN_COMMANDS = 200
SHOWN_VERSIONS = 24
"""Rows of the timeline; older versions are in the table of decisions."""
REFUSED, ROLLED_BACK = "refused", "rolled back"
COLORS = {
    CHAMPION: color_of(0),
    CHALLENGER: color_of(1),
    ROLLED_BACK: color_of(3),
    REFUSED: color_of(5),
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
    on = [] if version is None else record.on(version)
    if version is not None and version not in there and not on:
        raise NotFoundError(
            f"there is no bundle and no decision of {version!r} in {folder.bundles}; see the table "
            "of decisions"
        )
    blocks: list[Block] = [tiles(folder, record), *timeline(record, folder)]
    if on:
        blocks.append(decision_section(on[0], folder, on[1:]))
    elif version is not None:
        lines = [f"There is no decision on {version}: it was released before decisions were."]
        blocks.append(Words(lines=lines, tone="note"))
    if not context.exported:
        blocks.append(
            actions_section(context, folder, record, version if version in there else None)
        )
    blocks += [
        *decisions_table(record, folder),
        *commands_table(record, folder),
        bundles_table(context, folder, record, there),
    ]
    chosen = [] if version is None else [version]
    versions = list(dict.fromkeys([*chosen, *decided, *there]))[:MAX_OPTIONS]
    places = folders(context)[:200] or [folder]
    labels = {one: f"{one} (served)" if one == record.served else one for one in versions}
    known = {one.key: one.name for one in places}
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
    for label, version, tone in (
        ("Champion", record.served, "plain" if record.is_there else "bad"),
        ("Challenger", record.challenger, "plain"),
    ):
        since = record.since(version)
        found.append(
            Tile(
                label=label,
                value=version or "none",
                note=f"since {minute(since)} UTC" if since and version else "",
                tone="bad" if tone == "bad" else "plain",
                link=link_to(folder, version) if version else None,
            )
        )
    states = [one.state for one in record.decisions]
    parts = [f"{n:,} {SIGNATURES[one]}" for one in reversed(SIGNATURES) if (n := states.count(one))]
    refused = sum(one.decision.outcome == REFUSED for one in record.decisions)
    return Tiles(
        tiles=[
            *found,
            Tile(
                label="Trained until",
                value=trained_until(folder, record.served),
                note="the latest event that its models know (UTC)",
            ),
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


def timeline(record: Record, folder: Folder) -> list[Chart]:
    """Draw which version an alias named when, with rollbacks and refusals; none without any."""
    events = list(_marks(record))
    changes = [time for one in record.changes if (time := parse_time(one.time))]
    times = [*changes, *(time for _, _, time in events)]
    if not times:
        return []
    end = max(times) + max(timedelta(hours=1), (max(times) - min(times)) * 0.05)
    spans = [span for alias in (CHAMPION, CHALLENGER) for span in _spans(record, alias, end)]
    latest: dict[str, datetime] = {}
    for version, _, at, *_ in [*((*one, None) for one in events), *spans]:
        latest[version] = max(at, latest.get(version, at))
    labels = sorted(latest, key=lambda version: (latest[version], version), reverse=True)
    rows: list[Row] = [
        *((version, alias, second(begin), second(until)) for version, alias, begin, until in spans),
        *((version, what, second(time), None) for version, what, time in events),
    ]
    used = {row[1] for row in rows}
    chart = figure(
        spans_chart,
        "timeline",
        "Which version was served when",
        "A row is a version, the newest at the top. Its bar lasts while it was champion "
        "or challenger; a cross is a refusal or a rollback to it. What is served now continues "
        "beyond the right edge.",
        [
            *texts("version", "what"),
            *(Column(label=label, format="time") for label in ("from", "until")),
        ],
        rows,
        "label series at until",
        colors={name: color for name, color in COLORS.items() if name in used},
        shown=lambda row: row[3] is not None and row[0] in labels[:SHOWN_VERSIONS],
        labels=labels[:SHOWN_VERSIONS],
        marks=[
            {
                "label": version,
                "series": what,
                "at": second(time),
                "note": f"{version}: {what} at {minute(time)}",
            }
            for version, what, time in events
            if version in labels[:SHOWN_VERSIONS]
        ],
        origins=folder.origins,
    )
    return [chart]


def _spans(
    record: Record, alias: str, end: datetime
) -> Iterator[tuple[str, str, datetime, datetime]]:
    """List how long an alias named each version; a challenger until it is promoted or replaced."""
    version, begin = "", end
    for change in record.changes:
        time = parse_time(change.time)
        named = change.alias == alias
        # A version that becomes champion is no challenger any more.
        taken = alias == CHALLENGER and change.alias == CHAMPION and change.version == version
        if time is None or not (named or taken):
            continue
        if version:
            yield version, alias, begin, time
        version, begin = (change.version, time) if named else ("", end)
    if version:
        yield version, alias, begin, end


def _marks(record: Record) -> Iterator[tuple[str, str, datetime]]:
    """List rollbacks and refusals: version, which of them, and time."""
    for change in record.changes:
        if change.action == "rollback" and (time := parse_time(change.time)):
            yield change.version, ROLLED_BACK, time
    for one in record.decisions:
        if one.decision.outcome == REFUSED and (time := parse_time(one.decision.time)):
            yield one.decision.challenger, REFUSED, time


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


def decision_section(decided: Written, folder: Folder, earlier: Sequence[Written]) -> Section:
    """Show one decision whole."""
    decision, altered = decided.decision, decided.state == ALTERED
    lines = [
        f"Taken at {decision.time or 'an unknown time'} by {by_whom(decided)}; champion before "
        f"it: {decision.champion or 'none'}.",
        f"{decided.name}; signature: {SIGNATURES[decided.state]}.",
    ]
    if altered:
        lines.append(f"Its text cannot be trusted, so only its outcome is shown: {decided.fault}")
    links = []
    if isinstance(decision.champion, str):
        links.append(link_to(folder, decision.champion, f"decision on {decision.champion}"))
    is_bad = altered or decision.outcome == REFUSED
    blocks: list[Block] = [Words(lines=lines, tone="bad" if is_bad else "plain", links=links)]
    if not altered:
        if decision.words:
            blocks.append(Words(lines=[str(line) for line in decision.words]))
        blocks += _gate(decided, folder, earlier)
    if earlier:
        lines = [
            f"{time:%Y-%m-%d %H:%M:%S}: {one.decision.outcome}; {why(one)}"
            for one in earlier
            if (time := parse_time(one.decision.time))
        ]
        blocks.append(Words(lines=["Earlier decisions on this version:", *lines]))
    title = f"Decision on {decision.challenger}: {decision.outcome}"
    return Section(key="decision", title=title, blocks=blocks)


def _gate(decided: Written, folder: Folder, earlier: Sequence[Written]) -> Iterator[Block]:
    """Show what the gate measured; for a promotion by hand, when it released the version."""
    of_gate = (
        one for one in (decided, *earlier) if one.state != ALTERED and whole_verdicts(one.decision)
    )
    one = next(of_gate, None)
    if one is None:
        return
    decision, verdicts = one.decision, whole_verdicts(one.decision)
    if one is not decided:
        yield Words(lines=[f"The gate judged it at {decision.time}: {decision.outcome}."])
    power = decision.power if isinstance(decision.power, dict) else {}
    found = power.get("found_in_4_of_5_cases")
    if isinstance(found, float):
        words = (
            f"The smallest difference in {power.get('metric')} that {power.get('users')} users "
            f"reliably show (4 times in 5) is {abs(found):.1%}; smaller ones may go unseen."
        )
        yield Words(lines=[words], tone="note")
    if failed := [str(verdict["name"]) for verdict in verdicts if not verdict.get("passed")]:
        lines = [f"{name}: {advice_for(name)}." for name in failed]
        yield Words(lines=["What to do next:", *lines], tone="note")
    against = [verdict for verdict in verdicts if "against" in str(verdict["name"])]
    if against and decision.champion:
        title = f"Compared with the champion {decision.champion}"
        note = "On the same queries, and by slice if a slice has enough users."
        yield _verdicts("against", title, note, against, folder)
    note = "What the gate measured, what it allows, and why; failed checks first."
    yield _verdicts("verdicts", "All checks", note, verdicts, folder)


def _verdicts(
    key: str, title: str, note: str, verdicts: Sequence[Mapping[str, Any]], folder: Folder
) -> Table:
    rows: list[list[Cell]] = []
    for one in sorted(
        verdicts, key=lambda one: ("FAILED", "not tested", "passed").index(format_result(one))
    ):
        value, bound = (
            float(number) if isinstance(number := one.get(name), (int, float)) else None
            for name in ("value", "bound")
        )
        found = "" if one.get("passed") else found_in(value, bound)
        reason = str(one.get("reason", ""))
        rows.append([str(one["name"]), format_result(one), value, bound, found, reason])
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
        origins=folder.origins,
    )


def actions_section(
    context: Context, folder: Folder, record: Record, version: str | None
) -> Section:
    """Offer what can be done with the chosen version."""
    blocks: list[Block] = []
    words = "The chosen version is served, and there is none before it. Choose another one."
    if context.key is None:
        words = NO_KEY[0].upper() + NO_KEY[1:] + "."
    else:
        blocks += actions_for(folder, version, record.served)
    blocks = blocks or [Words(lines=[words], tone="note")]
    return Section(key="actions", title="Promote or roll back", blocks=blocks)


def commands_table(record: Record, folder: Folder) -> list[Table]:
    """List the commands that ran in the workspace, the newest first."""
    rows: list[Sequence[Cell]] = [
        (
            f"{one.time[:19]}Z",
            one.command,
            one.outcome if one.outcome not in ("failed", REFUSED) else one.outcome.upper(),
            one.exit_code,
            one.seconds,
            "; ".join(str(reason) for reason in one.reasons),
        )
        for one in list(reversed(record.commands))[:SHOWN_COMMANDS]
    ]
    outcomes: list[str] = [one.outcome for one in record.commands]
    more = len(outcomes) - len(rows)
    table = Table(
        key="commands",
        title="Commands that ran",
        note=f"The newest first. {len(outcomes):,} commands, {outcomes.count('failed'):,} failed, "
        f"{outcomes.count(REFUSED):,} refused."
        + (f" The {more:,} before these are in history.jsonl." if more else ""),
        columns=[
            Column(label="began (UTC)", format="time"),
            *texts("command", "outcome"),
            *numbers("exit code", note="0 done, 3 refused, 5 alarm, 75 busy."),
            *numbers("time", format="seconds"),
            *texts("reasons"),
        ],
        rows=rows,
        page_length=10,
        origins=folder.origins,
    )
    return [table] if rows else []


def bundles_table(context: Context, folder: Folder, record: Record, there: Sequence[str]) -> Table:
    """List the bundles on disk, their sizes and why they are kept."""
    bundles = folder.bundles
    paths = [bundle_directory(bundles, version) for version in there]
    files = [*(path / MANIFEST for path in paths), bundles / LOG]
    sizes, keep = context.cache.get(
        ("bundles on disk", str(bundles), record.served), files, lambda: _on_disk(bundles, paths)
    )
    rows: list[Sequence[Cell | LinkedCell]] = [
        (
            LinkedCell(text=version, link=link_to(folder, version)),
            second(written_at(path)),
            sizes[path],
            next((one.decision.outcome for one in record.on(version)), None),
            keep.get(version, "not in use; recsys gc may remove it once it is old"),
        )
        for version, path in zip(there, paths, strict=True)
    ]
    return Table(
        key="bundles",
        title="Bundles on disk",
        note=f"{len(there):,} bundles; the folder {bundles} takes {size(sizes[bundles])}, files "
        "that bundles share counted once.",
        columns=[
            *texts("version"),
            Column(label="written (UTC)", format="time"),
            *numbers("size", format="bytes"),
            *texts("outcome", "why it is there"),
        ],
        rows=rows,
        page_length=10,
        origins=folder.origins,
    )


def _on_disk(bundles: Path, paths: Sequence[Path]) -> tuple[dict[Path, int], dict[str, str]]:
    """Measure bundles, and list why each is kept."""
    sizes = {path: disk_bytes(path) for path in (bundles, *paths)}
    try:
        return sizes, reasons_to_keep(bundles, Keep(since=datetime.now(UTC), newest=0))
    except ValueError:
        # The history of aliases cannot be read; the page says so above all.
        return sizes, {}


ENTRY = PageEntry(name="releases", title=TITLE, build=build, keeps=("run",), actions=ACTIONS)
