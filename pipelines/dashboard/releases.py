"""Page ``releases``: the served version, and every decision from the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import names_in, place_key
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.decisions import (
    ALTERED,
    KEY,
    LOG,
    Decision,
    Written,
    read_challenger,
    read_decisions,
    signing_key,
)
from pipelines.pages.charts import numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Link,
    LinkedCell,
    Origin,
    Page,
    Section,
    Table,
    Words,
    select,
)
from pipelines.publishing.comparison import format_result, found_in, is_untested
from pipelines.publishing.promotion import served_version
from pipelines.publishing.released import shop_workspace
from serving.bundle.manifest import MANIFEST, bundle_directory

TITLE = "Releases"
MAX_OPTIONS = 100
REFUSED, WAITS = "refused", "kept as challenger"
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
TO_CHANGE = (
    "recsys release promote serves another version, recsys release rollback the one before; both "
    "write the decision down."
)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of bundles, with the workspace whose runs publish there."""

    key: str
    bundles: Path
    workspace: Path | None
    origins: Sequence[Origin]

    @property
    def name(self) -> str:
        return str(self.workspace or self.bundles)


def choose_folder(context: Context, query: Query) -> tuple[Folder | None, list[Folder]]:
    """Choose by ``bundles`` or ``run``, else the one with the newest bundle; list all of them."""
    runs = context.stores.runs()
    of_path = {run.path: run for run in runs if run.kind == "workspace"}
    newest: dict[Path, Run] = {}
    for run in runs:
        if run.kind == "bundle":
            newest.setdefault(run.bundles_folder, run)
    known = []
    for bundles, bundle in newest.items():
        maker = of_path.get(bundles.parent) or context.stores.maker(bundle)
        above = bundles.parent if (bundles.parent / "config.toml").is_file() else None
        workspace = above if maker is None else shop_workspace(maker.path)
        own, key = [maker.origin] if maker else [], place_key(str(bundles))
        known.append(Folder(key=key, bundles=bundles, workspace=workspace, origins=own))
    if key := query.text("bundles"):
        if found := next((one for one in known if one.key == key), None):
            return found, known
        raise NotFoundError(
            f"no folder of bundles {key!r}: it is gone, or holds no bundle any more"
        )
    if key := query.text("run"):
        run = context.stores.run(key)
        for one in known:
            if one.bundles == run.bundles_folder or one.workspace == shop_workspace(run.path):
                return one, known
        raise NotFoundError(f"{run.name} has released no bundle; recsys run {run.path} makes one")
    return (known[0] if known else None), known


@dataclass(frozen=True, kw_only=True)
class ReleaseLog:
    """The decisions of a folder, newest first, the served version, and faults in words."""

    served: str | None
    challenger: str | None
    decisions: Sequence[Written]
    faults: Sequence[str]

    @property
    def lead(self) -> str:
        """The served version, and the challenger if one waits."""
        if self.served is None:
            return "Nothing is served."
        times = (one.decision.time for one in self.decisions if one.decision.serves == self.served)
        since = next(times, "")[:16].replace("T", " ")
        served = f"{self.served} is served" + (f" since {since}" if since else "")
        if self.challenger:
            return f"{served}; {self.challenger} waits as challenger."
        return f"{served}; there is no challenger."


def read_log(bundles: Path) -> ReleaseLog:
    """Read the log; a part that cannot be read is named in the faults."""
    key, challenger, faults, decisions = None, None, [], list[Written]()
    try:
        key = signing_key()
    except ValueError as error:
        faults.append(str(error))
    served = served_version(bundles)
    if served and not (bundle_directory(bundles, served) / MANIFEST).is_file():
        faults.append(f"{served} is to be served, but its bundle is not in {bundles}")
    try:
        decisions, wrong = read_decisions(bundles, key)
        faults += wrong
        challenger = read_challenger(bundles)
    except OSError as error:
        faults.append(f"{bundles / LOG} cannot be read: {error.strerror}")
    except ValueError as error:
        faults.append(str(error))
    if key is None and any(one.state == "not verified" for one in decisions):
        faults.append(f"{KEY} is not set here, so no signature is verified")
    newest_first = decisions[::-1]
    return ReleaseLog(served=served, challenger=challenger, decisions=newest_first, faults=faults)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    folder, known = choose_folder(context, query)
    if folder is None:
        words = Words(lines=[NOTHING], tone="note")
        return Page(title=TITLE, lead="What is served, and why.", blocks=[words])
    log, bundles = read_log(folder.bundles), folder.bundles
    there = [name.removeprefix("bundle-") for name in names_in(bundles) if "bundle-" in name]
    decided = [str(one.decision.challenger) for one in log.decisions]
    version = query.text("version") or log.served or next(iter(decided), None)
    on = [one for one in log.decisions if one.decision.challenger == version]
    if version is not None and version not in there and not on:
        raise NotFoundError(
            f"there is no bundle and no decision of {version!r} in {bundles}; see the table of "
            "decisions"
        )
    blocks: list[Block] = []
    if on:
        blocks.append(_decision_section(on, folder))
    if log.decisions:
        blocks.append(_decisions_table(log, folder))
    blocks.append(Words(lines=[TO_CHANGE], tone="note"))
    folders = {one.key: one.name for one in known[:MAX_OPTIONS]}
    control = select("bundles", "Workspace", folder.key, folders, clears=("version", "run"))
    return Page(title=TITLE, lead=log.lead, blocks=blocks, controls=[control], notices=log.faults)


def _link_to(folder: Folder, version: str, label: str = "") -> Link:
    """Link to the decision on a version."""
    values = {"bundles": folder.key, "version": version}
    return Link(label=label or version, page="releases", parameters=values)


def _verdicts(decision: Decision) -> list[Mapping[str, Any]]:
    """List the verdicts that are whole, failed ones first; a log written by hand may lack some."""
    whole = [one for one in decision.verdicts if isinstance(one, dict) and "name" in one]
    return sorted(whole, key=lambda one: RESULTS.index(format_result(one)))


def _why(decided: Written) -> str:
    """Return the reason of a decision in a line."""
    verdicts = _verdicts(decided.decision)
    if decided.state == ALTERED:
        return decided.fault
    if failed := [str(one["name"]) for one in verdicts if not one.get("passed")]:
        return "failed: " + ", ".join(failed)
    for one in verdicts:
        if is_untested(one):
            return f"{one['name']} was not tested: {one.get('reason', '')}"
    return str(decided.decision.words[-1]) if decided.decision.words else ""


def _by_whom(decided: Written) -> str:
    """Return who took the decision: the gate of a run, or a person."""
    outcome = decided.decision.outcome
    by_hand = outcome == WAITS and not _verdicts(decided.decision)
    if by_hand or outcome in ("promoted", "rolled back", "appended"):
        return "a person"
    if outcome in ("fetched", "taken from the registry"):
        return "the registry"
    return "the gate, overridden by a person" if decided.decision.forced else "the gate of a run"


def _decisions_table(log: ReleaseLog, folder: Folder) -> Table:
    """List every decision, the newest first."""
    rows: list[list[Cell | LinkedCell]] = []
    for one in log.decisions:
        version = str(one.decision.challenger)
        rows.append(
            [
                str(one.decision.time) or None,
                LinkedCell(text=version, link=_link_to(folder, version)),
                f"{one.decision.outcome}{' (forced)' if one.decision.forced else ''}",
                _by_whom(one),
                SIGNATURES[one.state],
                one.decision.champion,
                _why(one),
            ]
        )
    return Table(
        key="decisions",
        title="Decisions",
        note="Every release, refusal, promotion and rollback, the newest first. Each is a line of "
        "the log that is signed if RECSYS_SIGNING_KEY is set and names the one before it. A "
        "version leads to its decision.",
        columns=[
            Column(label="time (UTC)", format="time"),
            *texts("version", "outcome", "decided by"),
            *texts("signature", note="NOT VALID: the line is not what was signed."),
            *texts("champion before", "why"),
        ],
        rows=rows,
        page_length=10,
        origins=folder.origins,
    )


def _decision_section(on: Sequence[Written], folder: Folder) -> Section:
    """Show the newest decision on a version whole, and the verdicts of the gate."""
    decided, decision = on[0], on[0].decision
    altered = decided.state == ALTERED
    lines = [
        f"Taken at {decision.time or 'an unknown time'} by {_by_whom(decided)}; champion before "
        f"it: {decision.champion or 'none'}.",
        f"{decided.name}; signature: {SIGNATURES[decided.state]}.",
    ]
    if altered:
        lines.append(f"Its text cannot be trusted, so only its outcome is shown: {decided.fault}")
    else:
        lines += [str(line) for line in decision.words]
    links = []
    if isinstance(decision.champion, str):
        links.append(_link_to(folder, decision.champion, f"decision on {decision.champion}"))
    is_bad = altered or decision.outcome == REFUSED
    blocks: list[Block] = [Words(lines=lines, tone="bad" if is_bad else "plain", links=links)]
    judged = [one for one in on if one.state != ALTERED and _verdicts(one.decision)]
    if judged and not altered:
        # For a promotion by hand, what the gate found when it released the version.
        blocks.append(_gate(judged[0].decision, folder))
    title = f"Decision on {decision.challenger}: {decision.outcome}"
    return Section(key="decision", title=title, blocks=blocks)


def _gate(decision: Decision, folder: Folder) -> Table:
    """Show what the gate measured, failed checks first."""
    rows: list[list[Cell]] = []
    for one in _verdicts(decision):
        value, bound = (
            float(number) if isinstance(number := one.get(name), (int, float)) else None
            for name in ("value", "bound")
        )
        found = "" if one.get("passed") else found_in(value, bound)
        reason = str(one.get("reason", ""))
        rows.append([str(one["name"]), format_result(one), value, bound, found, reason])
    return Table(
        key="verdicts",
        title="All checks",
        note=f"What the gate measured at {decision.time}, what it allows, and why; failed checks "
        "first.",
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


ENTRY = PageEntry(name="releases", title=TITLE, build=build, keeps=("run",))
