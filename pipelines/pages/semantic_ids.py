"""Documents of semantic IDs, for the report of ``recsys ids report`` and the dashboard alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipelines.engine.artifacts import to_json
from pipelines.pages.charts import percent, texts
from pipelines.pages.document import (
    Block,
    Code,
    Entry,
    ItemList,
    Lists,
    Page,
    Section,
    Table,
    Words,
)
from pipelines.pages.file import write_page
from pipelines.pages.semantic_id_drift import drift_section, marked_id
from pipelines.pages.semantic_id_sections import (
    ENOUGH_USED,
    HOW,
    METHODS,
    content_section,
    level_name,
    levels_text,
    popularity_section,
    prefix_name,
    prefix_section,
    tiles,
    usage_section,
)
from pipelines.semantic_ids.items import Items
from pipelines.semantic_ids.measure import Drift, PrefixExample, SemanticIdReport
from pipelines.semantic_ids.store import SHORT

CROWDED = 10
"""Times the mean from which a code is reported as crowded."""
HARDLY_MORE = 0.05
KINDS = {"popular": "popular", "tail": "of the tail", "spread": "one of many"}
MEANING = (
    "A semantic ID is a short sequence of codes, coarse to fine, from residual quantisation of {}: "
    "items with the same prefix are similar. A generative model recommends only items that have "
    "an ID; it generalises to new items through the codes they share with others{}."
)


def _items_have(count: int) -> str:
    return "1 item has" if count == 1 else f"{count:,} items have"


def answer(report: SemanticIdReport) -> str:
    """Summarise the version."""
    everyone = report.num_with_id == report.num_items
    who = "All" if everyone else f"{report.num_with_id:,} of"
    unique = "" if report.num_shared else ", all unique"
    found = f"{who} {report.num_items:,} items have an ID of {len(report.levels)} codes{unique}."
    first = report.levels[0]
    chance = first.agreement_by_chance
    times = first.neighbour_agreement / chance if chance else 0
    if report.content is not None and times > 1:
        found += (
            f" Nearest neighbours by content share the first code {times:,.0f} times as often as "
            "random pairs."
        )
    return found


def notices(report: SemanticIdReport) -> list[str]:
    """List warnings."""
    found, missing = [], report.num_items - report.num_with_id
    if not report.made:
        found += [f"Items without an ID in this version: {missing:,}."] if missing else []
    elif report.num_without_content:
        found.append(
            f"{_items_have(report.num_without_content)} no content and therefore no ID; the "
            "generative model cannot recommend such items."
        )
    if report.made and report.num_waiting:
        found.append(
            f"{_items_have(report.num_waiting)} content but no ID in this version; run recsys ids "
            "append."
        )
    for place, level in enumerate(report.levels[: report.num_content_levels]):
        if level.utilisation < ENOUGH_USED:
            found.append(
                f"{level_name(place).capitalize()} uses {level.num_used:,} of its {level.size:,} "
                f"codes ({percent(level.utilisation)}). Fewer codes a level, or balanced = true, "
                "would use more of them."
            )
    largest, first = report.usage[0][0], report.levels[0]
    times = largest * first.size / max(1, report.num_with_id)
    if times > CROWDED:
        found.append(
            f"The most used first code has {times:.0f} times the mean: {largest:,} items share it."
        )
    if (first.purity or 0) - (first.purity_by_chance or 0) < HARDLY_MORE and first.purity:
        found.append("First codes agree with the categories hardly more than by chance.")
    if report.num_shared:
        found.append(f"{report.num_shared:,} items share their ID with another item.")
    return found


def _listed(items: Sequence[tuple[str, str, int]]) -> list[Entry]:
    return [
        Entry(item_id=f"{title} {text}", title=title, note=marked_id(text, shared))
        for title, text, shared in items
    ]


def _example(place: int, example: PrefixExample) -> Section:
    near = sum(1 for _, _, shared in example.nearest if shared)
    lists = [
        ItemList(
            title="Nearest by content",
            note=f"{near} of {len(example.nearest)} with its first code",
            entries=_listed(example.nearest),
        )
    ]
    for depth, (shared, count, listed) in enumerate(example.groups):
        others = "1 other item" if count == 1 else f"{count:,} other items"
        longer = ", including those of longer prefixes" if depth and count else ""
        title, note = f"Same {prefix_name(shared, 0)}", f"{others if count else 'no other item'}"
        lists.append(ItemList(title=title, note=f"{note}{longer}", entries=_listed(listed)))
    events = "" if example.kind == "spread" else f", events: {example.popularity:,.0f}"
    parts = [f"{KINDS[example.kind]}{events}", example.category]
    return Section(
        key=f"example-{place}",
        title=f"{example.title[:80]} ({example.semantic_id})",
        note="; ".join(filter(None, parts)),
        blocks=[Lists(key=f"lists-{place}", lists=lists, numbered=False)],
    )


def _examples(examples: Sequence[PrefixExample]) -> Section:
    spread = bool(examples) and examples[0].kind == "spread"
    chosen = "the most and the least popular items, each with another first code"
    return Section(
        key="examples",
        title="Examples",
        note=f"Chosen by rule: {'items evenly spread over the catalogue' if spread else chosen}. "
        "With good IDs the nearest neighbours by content share its prefixes. Codes shared with "
        "the example are in brackets.",
        blocks=[_example(place, one) for place, one in enumerate(examples)],
    )


def _provenance(report: SemanticIdReport) -> Section:
    made, without = report.made, report.num_without_content
    method, how = str(made.get("method", "unknown")), str(made.get("how", "published"))
    content = f" ({without:,} have no content)" if without else ""
    gone = "they are not reused"
    source = "content"
    if report.is_of_behaviour:
        source = "item vectors of the sequence model; new items by content"
    rows = {
        "version": report.version,
        "parent": report.parent or "none",
        "made by": HOW.get(how, how),
        "method": f"{METHODS.get(method, method)}, levels of {levels_text(report.level_sizes)} "
        "codes",
        "source": source,
        "quantiser": str(made.get("quantizer", "unknown")),
        "content": str(made.get("origin", {}).get("encoder", "unknown")),
        "items": f"{report.num_items:,} in the catalogue: {report.num_with_id:,} with an ID, "
        f"{report.num_items - report.num_with_id:,} without{content}",
        "departed": f"{report.num_departed:,} IDs of items that are no longer in the catalogue; "
        f"{gone}",
        "retired": f"{report.num_retired or 0:,} IDs of earlier versions that no item has; {gone}",
    }
    columns = texts("of", "value")
    table = Table(key="made", title="Made from", note="", columns=columns, rows=[*rows.items()])
    settings = Code(key="settings", title="Settings", text=to_json(dict(report.settings)))
    blocks: list[Block] = [table, *([settings] if report.settings else [])]
    return Section(key="provenance", title="Provenance", blocks=blocks)


def semantic_ids_page(
    report: SemanticIdReport, drift: Drift | None, examples: Sequence[PrefixExample], counted: str
) -> Page:
    """Build the page of a report."""
    source = ("content embeddings", "")
    if report.is_of_behaviour:
        source = ("a sequence model's item vectors", ", which are assigned by content")
    return Page(
        title=f"Semantic IDs of {report.title}, version {report.version[:SHORT]}",
        lead=answer(report),
        blocks=[
            tiles(report, drift),
            Words(lines=[MEANING.format(*source)]),
            usage_section(report),
            prefix_section(report),
            content_section(report),
            popularity_section(report, counted),
            _examples(examples),
            drift_section(report, drift),
            _provenance(report),
        ],
        notices=notices(report),
    )


def write_semantic_id_report(
    report: SemanticIdReport,
    drift: Drift | None,
    examples: Sequence[PrefixExample],
    items: Items,
    html: Path,
) -> Path:
    """Write the report to ``html`` and its values to a file of the same name with ``.json``.

    Returns:
        Path of the JSON.
    """
    if html.suffix != ".html":
        raise ValueError(f"{html} must end in .html; the numbers are written next to it")
    values = html.with_suffix(".json")
    write_page(semantic_ids_page(report, drift, examples, items.counted), html)
    parts = {
        **asdict(report),
        "drift": None if drift is None else asdict(drift),
        "examples": [asdict(one) for one in examples],
    }
    values.write_text(to_json(parts), encoding="utf-8")
    return values
