"""Results for a workspace: drift, freshness, parity, off-policy estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.dashboard.workspaces.files import UnreadableError, names_in, place_key, read_table
from pipelines.engine.history import MONITOR, PARITY
from pipelines.monitoring.page import monitoring_blocks
from pipelines.off_policy.summary import estimates_table, summarize
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import Block, Link, Section, Table, Words
from pipelines.parity.recompute import SKIPPED

OFF_POLICY = "off_policy"
Faults = list[str]


def monitor_section(workspace: Path) -> tuple[Section, Faults]:
    """Show the latest day that was watched, and the faults of its files."""
    path = workspace / MONITOR
    none = f"No day was watched yet. Run: recsys monitor {workspace}"
    return _section(path, "monitor", "Drift and freshness", none, _monitored)


def parity_section(workspace: Path) -> tuple[Section, Faults]:
    """Show the latest check of served lists against what batch computes."""
    none = f"Served lists were not computed once more yet. Run: recsys parity {workspace}"
    return _section(workspace / PARITY, "parity", "Parity of serving", none, _parity)


def page_links(folder: Path) -> list[Link]:
    """Link to the pages that commands wrote into a folder of a workspace."""
    key = place_key(str(folder.parent.resolve()))
    return [
        Link(label=f"Page {name}", file=f"{key}/{folder.name}/{name}")
        for name in names_in(folder)
        if name.endswith(".html") and not name.startswith(".")
    ]


def _section(
    path: Path, key: str, title: str, none: str, draw: Callable[[Mapping[str, Any]], list[Block]]
) -> tuple[Section, Faults]:
    """Draw a command's document; ``key`` is the command."""
    blocks: list[Block] = [Words(lines=[none], tone="note")]
    faults = []
    try:
        document = read_table(path)
        if document is not None:
            blocks = draw(document)
            links = page_links(path.parent)
            blocks += [Words(lines=[], links=links)] if links else []
    except (UnreadableError, KeyError, TypeError, ValueError, OSError) as error:
        blocks = []
        faults = [f"{path} cannot be read ({error}); run recsys {key}"]
    return Section(key=key, title=title, blocks=blocks), faults


def _monitored(document: Mapping[str, Any]) -> list[Block]:
    lines = [f"Watched at {document['time']}.", *map(str, document["words"])]
    tone = "bad" if document["alarm"] else "good"
    return [Words(lines=lines, tone=tone), *monitoring_blocks(document, None)]  # type: ignore[arg-type]


def _parity(document: Mapping[str, Any]) -> list[Block]:
    recomputed, equal = int(document["recomputed"]), int(document["equal"])
    found = f"{equal:,} of {recomputed:,} recomputed lists are equal to the last bit"
    if recomputed:
        # Rounded down: 100% is said of all alone.
        found += f" ({int(10_000 * equal / recomputed) / 100:g}%)"
    lines = [
        f"{found}, of bundle {document['bundle']}, at {document['time']}.",
        f"{int(document['requests']):,} of {int(document['logged']):,} logged lists were taken.",
    ]
    lines += [
        f"{int(count):,} were not recomputed: {SKIPPED.get(reason, reason)}."
        for reason, count in document["skipped"].items()
    ]
    tone = "good" if recomputed and equal == recomputed else "bad" if recomputed else "note"
    blocks: list[Block] = [Words(lines=lines, tone=tone)]  # type: ignore[arg-type]
    if document["differences"]:
        blocks.append(
            Table(
                key="parity",
                title="What differs",
                note="Causes first; the others follow from them. Counted are recomputed lists "
                "whose first difference it is.",
                columns=[
                    *texts("what"),
                    *counts("first in"),
                    *numbers("at most apart"),
                    *texts("example"),
                ],
                rows=[
                    (str(one["what"]), one["first"], one["largest"], one["example"])
                    for one in sorted(document["differences"], key=lambda one: -one["first"])
                ],
            )
        )
    return blocks


def off_policy_section(workspace: Path) -> tuple[Section, Faults]:
    """Show what policies would have earned, by the documents that were kept."""
    folder = workspace / OFF_POLICY
    blocks: list[Block] = []
    faults = []
    for name in names_in(folder):
        if not name.endswith(".json"):
            continue
        try:
            document = read_table(folder / name) or {}
            words = Words(lines=[f"{name}:", *summarize(document)])
            blocks += [words, estimates_table(document, f"-{name}")]
        except (UnreadableError, KeyError, TypeError, ValueError, StopIteration) as error:
            faults.append(f"{folder / name} is no estimate of recsys ope ({error!r})")
    if not blocks:
        command = f"recsys ope --policy BUNDLE --log EXPORT --json > {folder}/NAME.json"
        blocks.append(Words(lines=[f"No estimate was kept. Run: {command}"], tone="note"))
    return Section(key="off-policy", title="Off-policy estimates", blocks=blocks), faults
