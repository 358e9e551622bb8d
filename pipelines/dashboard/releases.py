"""Page ``releases``: the served version, and every decision from the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    STATES,
    Decision,
    Written,
    describe_decision,
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
from pipelines.publishing.comparison import format_result, found_in
from pipelines.publishing.promotion import served_version
from serving.bundle.manifest import MANIFEST, bundle_directory

TITLE = "Releases"
MAX_OPTIONS = 100
RESULTS = ("FAILED", "not tested", "passed")
NOTHING = (
    "Nothing was released yet. A run writes a bundle and decides on it: recsys run "
    "shop.toml. To see the bundles of another folder, name it with --root or --bundles."
)
TO_CHANGE = (
    "recsys release promote serves another version, recsys release rollback the one before; both "
    "write the decision down."
)


def choose_folder(context: Context, query: Query) -> tuple[str, dict[str, Run]]:
    """Choose a folder by ``bundles`` or ``run``, else that of the newest bundle.

    Returns:
        Its key, empty without any bundle, and the newest bundle of each folder by key.
    """
    known: dict[str, Run] = {}
    for bundle in context.stores.bundles():
        known.setdefault(place_key(str(bundle.bundles_folder)), bundle)
    chosen = query.text("bundles") or next(iter(known), "")
    if name := query.text("run"):
        run = context.stores.run(name)
        chosen = place_key(str(run.bundles_folder))
        if chosen not in known:
            raise NotFoundError(
                f"{run.name} has released no bundle; recsys run {run.path} makes one"
            )
    if chosen and chosen not in known:
        raise NotFoundError(
            f"no folder of bundles {chosen!r}: it is gone, or holds no bundle any more"
        )
    return chosen, known


def read_log(bundles: Path) -> tuple[list[Written], list[str]]:
    """Read the decisions, newest first, and name each part that cannot be read or verified."""
    key, faults, decisions = None, [], list[Written]()
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
    except (OSError, ValueError) as error:
        faults.append(f"{bundles / LOG} cannot be read: {error}")
    if key is None and any(one.state == "not verified" for one in decisions):
        faults.append(f"{KEY} is not set here, so no signature is verified")
    return decisions[::-1], faults


def describe_served(bundles: Path, decisions: Sequence[Written]) -> str:
    """Name the served version, and the challenger if one waits."""
    if (served := served_version(bundles)) is None:
        return "Nothing is served."
    times = (one.decision.time for one in decisions if one.decision.serves == served)
    since = next(times, "")[:16].replace("T", " ")
    challenger = read_challenger(bundles) if decisions else None
    waits = f"{challenger} waits as challenger" if challenger else "there is no challenger"
    return f"{served} is served{since and f' since {since}'}; {waits}."


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    key, known = choose_folder(context, query)
    if not key:
        words = Words(lines=[NOTHING], tone="note")
        return Page(title=TITLE, lead="What is served, and why.", blocks=[words])
    bundles, origins = known[key].bundles_folder, [known[key].origin]
    decisions, faults = read_log(bundles)
    there = [name.removeprefix("bundle-") for name in names_in(bundles) if "bundle-" in name]
    decided = [str(one.decision.challenger) for one in decisions]
    version = query.text("version") or served_version(bundles) or next(iter(decided), None)
    on = [one for one in decisions if one.decision.challenger == version]
    if version is not None and version not in there and not on:
        raise NotFoundError(
            f"there is no bundle and no decision of {version!r} in {bundles}; see the table of "
            "decisions"
        )
    blocks: list[Block] = []
    if on:
        blocks.append(_decision_section(on, bundles, origins))
    if decisions:
        blocks.append(_decisions_table(decisions, key, origins))
    blocks.append(Words(lines=[TO_CHANGE], tone="note"))
    folders = {one: str(run.bundles_folder) for one, run in [*known.items()][:MAX_OPTIONS]}
    control = select("bundles", "Bundles", key, folders, clears=("version", "run"))
    lead = describe_served(bundles, decisions)
    return Page(title=TITLE, lead=lead, blocks=blocks, controls=[control], notices=faults)


def _decisions_table(decisions: Sequence[Written], key: str, origins: Sequence[Origin]) -> Table:
    rows: list[list[Cell | LinkedCell]] = []
    for one in decisions:
        version, decision = str(one.decision.challenger), one.decision
        values = {"bundles": key, "version": version}
        rows.append(
            [
                str(decision.time) or None,
                LinkedCell(
                    text=version, link=Link(label=version, page="releases", parameters=values)
                ),
                f"{decision.outcome}{' (forced)' if decision.forced else ''}",
                STATES[one.state],
                decision.champion,
                one.fault or decision.why,
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
            *texts("version", "outcome"),
            *texts("signature", note="NOT VALID: the line is not what was signed."),
            *texts("champion before", "why"),
        ],
        rows=rows,
        page_length=10,
        origins=origins,
    )


def _decision_section(on: Sequence[Written], bundles: Path, origins: Sequence[Origin]) -> Section:
    """Show the newest decision on a version whole, and the verdicts of the gate."""
    decided, decision = on[0], on[0].decision
    title = f"Decision on {decision.challenger}: {decision.outcome}"
    if decided.fault:
        lines = [f"Its text cannot be trusted, so only its outcome is shown: {decided.fault}"]
        return Section(key="decision", title=title, blocks=[Words(lines=lines, tone="bad")])
    refused = decision.outcome == "refused"
    lines = [line for line in describe_decision(decided, bundles) if line]
    blocks: list[Block] = [Words(lines=lines, tone="bad" if refused else "plain")]
    # For a promotion by hand, what the gate found when it released the version.
    judged = [one for one in on if one.state != ALTERED and one.decision.verdicts]
    if judged:
        blocks.append(_gate(judged[0].decision, origins))
    return Section(key="decision", title=title, blocks=blocks)


def _verdicts(decision: Decision) -> list[Mapping[str, Any]]:
    """List the verdicts that are whole, failed ones first; a log written by hand may lack some."""
    whole = [one for one in decision.verdicts if isinstance(one, dict) and "name" in one]
    return sorted(whole, key=lambda one: RESULTS.index(format_result(one)))


def _gate(decision: Decision, origins: Sequence[Origin]) -> Table:
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
        origins=origins,
    )


ENTRY = PageEntry(name="releases", title=TITLE, build=build, keeps=("run",))
