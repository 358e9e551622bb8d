"""The page of releases: what is served and since when, every decision, what can be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.releases.actions import (
    NO_KEY,
    actions_for,
    keep_as_challenger,
    promote_version,
    roll_back,
)
from pipelines.dashboard.releases.decision import decision_section, decisions_table, link_to
from pipelines.dashboard.releases.folders import Folder, chosen, folder_of
from pipelines.dashboard.releases.record import SIGNATURES, Record, record_of, versions_of
from pipelines.dashboard.releases.timeline import timeline
from pipelines.engine.formats import size
from pipelines.operations.in_use import Keep, reasons_to_keep
from pipelines.operations.status import disk_bytes
from pipelines.pages.columns import numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Control,
    LinkedCell,
    Option,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
)
from pipelines.publishing.promotion import HISTORY
from pipelines.publishing.released import Released, released_folder
from serving.bundle.manifest import MANIFEST, bundle_directory

TITLE = "Releases"
MAX_OPTIONS = 100
SHOWN_COMMANDS = 200
NOTHING = (
    "Nothing was released yet. A run writes a bundle and decides on it: recsys run --config "
    "shop.toml. To see the bundles of another folder, name it with --root or --bundles."
)


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    folder = folder_of(context, query)
    if folder is None:
        words = Words(lines=[NOTHING], tone="note")
        return Page(title=TITLE, lead="What is served, and why.", blocks=[words])
    record = record_of(context, folder)
    there = versions_of(folder)
    version = query.text("version") or record.served or _latest(record)
    if version is not None and version not in there and not record.on(version):
        raise NotFoundError(
            f"there is no bundle and no decision of {version!r} in {folder.bundles}; see the table "
            "of decisions"
        )
    blocks: list[Block] = [_tiles(folder, record)]
    if (chart := timeline(record, folder.origins)) is not None:
        blocks.append(chart)
    if version is not None:
        on = record.on(version)
        if on:
            blocks.append(decision_section(on[0], folder, on[1:]))
        else:
            lines = [f"There is no decision on {version}: it was released before decisions were."]
            blocks.append(Words(lines=lines, tone="note"))
    if not context.exported:
        blocks.append(_actions(context, folder, record, version if version in there else None))
    if record.decisions:
        blocks.append(decisions_table(record, folder))
    blocks += _commands(record, folder)
    blocks.append(_bundles(context, folder, record, there))
    return Page(
        title=TITLE,
        lead=_lead(record),
        blocks=blocks,
        controls=() if context.exported else _controls(context, folder, record, there, version),
        notices=record.faults,
    )


def _latest(record: Record) -> str | None:
    return str(record.decisions[-1].decision.challenger) if record.decisions else None


def _lead(record: Record) -> str:
    if record.served is None:
        return "Nothing is served."
    since = record.since(record.served)
    served = f"{record.served} is served" + (f" since {_time(since)}" if since else "")
    if record.challenger:
        return f"{served}; {record.challenger} waits as challenger."
    return f"{served}; there is no challenger."


def _tiles(folder: Folder, record: Record) -> Tiles:
    served, waiting = record.served, record.challenger
    refused = sum(one.decision.outcome == "refused" for one in record.decisions)
    bad = any(one.written is None for one in record.decisions)
    since = record.since(served)
    found = [
        Tile(
            label="Champion",
            value=served or "none",
            note=f"since {_time(since)} UTC" if since else "",
            tone="plain" if record.is_there else "bad",
            link=link_to(folder, served) if served else None,
        ),
        Tile(
            label="Trained until",
            value=_trained_until(folder, served),
            note="the latest event that its models know (UTC)",
        ),
        Tile(
            label="Challenger",
            value=waiting or "none",
            note=f"since {_time(record.since(waiting))} UTC" if waiting else "",
            link=link_to(folder, waiting) if waiting else None,
        ),
        Tile(label="Decisions", value=f"{len(record.decisions):,}", note=f"{refused:,} refused"),
        Tile(
            label="Signatures",
            value=_signed(record),
            note="of the decisions' files",
            tone="bad" if bad else "plain",
        ),
    ]
    return Tiles(tiles=found)


def _signed(record: Record) -> str:
    states = [one.state for one in record.decisions]
    parts = ((states.count(state), words) for state, words in reversed(SIGNATURES.items()))
    return ", ".join(f"{count:,} {words}" for count, words in parts if count) or "none"


def _trained_until(folder: Folder, version: str | None) -> str:
    if version is None or folder.workspace is None:
        return "not known"
    made = Released.read(released_folder(folder.workspace, version))
    if made is None or made.until is None:
        return "not known"
    return _time(datetime.fromtimestamp(made.until, UTC))


def _controls(
    context: Context, folder: Folder, record: Record, there: Sequence[str], version: str | None
) -> Sequence[Control]:
    decided = (str(one.decision.challenger) for one in reversed(record.decisions))
    versions = list(dict.fromkeys([*([version] if version else []), *decided, *there]))
    options = [
        Option(value=one, label=f"{one} (served)" if one == record.served else one)
        for one in versions[:MAX_OPTIONS]
    ]
    return (
        chosen(context, folder),
        Control(
            name="version", label="Version", kind="select", value=version or "", options=options
        ),
    )


def _actions(context: Context, folder: Folder, record: Record, version: str | None) -> Section:
    offered = actions_for(folder, version, record.served) if context.key is not None else []
    blocks: list[Block] = list(offered)
    if context.key is None:
        blocks = [Words(lines=[NO_KEY[0].upper() + NO_KEY[1:] + "."], tone="note")]
    elif not blocks:
        words = "The chosen version is served, and there is none before it. Choose another one."
        blocks = [Words(lines=[words], tone="note")]
    return Section(key="actions", title="Promote or roll back", blocks=blocks)


def _commands(record: Record, folder: Folder) -> Iterator[Table]:
    if not record.commands:
        return
    rows: list[Sequence[Cell]] = [
        (
            f"{one.time[:19]}Z",
            one.command,
            one.outcome if one.outcome not in ("failed", "refused") else one.outcome.upper(),
            one.exit_code,
            one.seconds,
            "; ".join(str(reason) for reason in one.reasons),
        )
        for one in list(reversed(record.commands))[:SHOWN_COMMANDS]
    ]
    more = len(record.commands) - len(rows)
    failed = sum(one.outcome == "failed" for one in record.commands)
    refused = sum(one.outcome == "refused" for one in record.commands)
    yield Table(
        key="commands",
        title="Commands",
        note=f"What ran in the workspace, the newest first: {len(record.commands):,} commands, "
        f"{failed:,} failed, {refused:,} refused."
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


def _bundles(context: Context, folder: Folder, record: Record, there: Sequence[str]) -> Table:
    paths = [bundle_directory(folder.bundles, version) for version in there]
    files = [path / MANIFEST for path in paths]
    sizes = context.cache.get(
        ("bundle sizes", str(folder.bundles)), files, lambda: _sizes(folder.bundles, paths)
    )
    keep = context.cache.get(
        ("bundles in use", str(folder.bundles), record.served),
        [*files, folder.bundles / HISTORY],
        lambda: _in_use(folder.bundles),
    )
    rows: list[Sequence[Cell | LinkedCell]] = [
        (
            LinkedCell(text=version, link=link_to(folder, version)),
            _written(path),
            sizes.get(path.name),
            record.on(version)[0].decision.outcome if record.on(version) else None,
            keep.get(version, "not in use; recsys gc may remove it once it is old"),
        )
        for version, path in zip(there, paths, strict=True)
    ]
    return Table(
        key="bundles",
        title="Bundles on disk",
        note=f"{len(there):,} bundles; the folder {folder.bundles} takes "
        f"{size(sizes.get('', 0))}, files that bundles share counted once.",
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


def _sizes(bundles: Path, paths: Sequence[Path]) -> dict[str, int]:
    return {"": disk_bytes(bundles), **{path.name: disk_bytes(path) for path in paths}}


def _in_use(bundles: Path) -> dict[str, str]:
    try:
        return reasons_to_keep(bundles, Keep(since=datetime.now(UTC), newest=0))
    except ValueError:
        # The history of aliases cannot be read; the page says so above all.
        return {}


def _written(path: Path) -> str | None:
    try:
        found = datetime.fromtimestamp((path / MANIFEST).stat().st_mtime, UTC)
    except OSError:
        return None
    return f"{found:%Y-%m-%dT%H:%M:%SZ}"


def _time(time: datetime | None) -> str:
    return "an unknown time" if time is None else f"{time:%Y-%m-%d %H:%M}"


ENTRY = PageEntry(
    name="releases",
    title=TITLE,
    build=build,
    keeps=("run",),
    actions={
        "promote": promote_version,
        "challenger": keep_as_challenger,
        "rollback": roll_back,
    },
)
