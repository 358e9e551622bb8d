"""The page of one version of semantic IDs, and the JSON of its values.

The dashboard's page of semantic IDs shows the same sections of any version.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipelines.engine.artifacts import to_json
from pipelines.pages.columns import counts, numbers, shares, texts
from pipelines.pages.document import (
    Block,
    Chart,
    Code,
    Entry,
    ItemList,
    Lists,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
)
from pipelines.pages.figure import percent
from pipelines.pages.file import write_page
from pipelines.pages.semantic_ids.data import ReportedIds
from pipelines.pages.semantic_ids.examples import Listed, PrefixExample
from pipelines.pages.semantic_ids.figures import (
    collision_figure,
    depth_figure,
    drift_figure,
    level_name,
    neighbour_figure,
    prefix_name,
    purity_figure,
    reconstruction_figure,
    usage_figure,
)
from pipelines.pages.semantic_ids.numbers import SemanticIdReport, numbers_of
from pipelines.pages.semantic_ids.summary import (
    HOW,
    METHODS,
    SHORT,
    answer,
    drift_text,
    levels_text,
    notices,
)

ENDING = ".html"
KINDS = {"popular": "popular", "tail": "of the tail", "spread": "one of many"}
MEANING = (
    "A semantic ID is a short sequence of codes, coarse to fine, from residual quantisation of {}: "
    "items with the same prefix are similar. A generative model recommends only items that have "
    "an ID; it generalises to new items through the codes they share with others{}."
)
UNMEASURED = (
    "Content neighbours are measured by the run that makes a version, and its report is not here. "
    "recsys ids report measures the workspace's current version."
)


def write_semantic_id_report(reported: ReportedIds, html: Path) -> Path:
    """Write the report to ``html`` and its values beside it with ``.json``.

    Returns:
        Path of the JSON.

    Raises:
        ValueError: The quantiser did not make the IDs, no item of the catalogue has one, the
            tables do not fit each other, or ``html`` does not end in .html.
    """
    if html.suffix != ENDING:
        raise ValueError(f"{html} must end in {ENDING}; the numbers are written beside it")
    report = numbers_of(reported)
    values = html.with_suffix(".json")
    write_page(semantic_ids_page(report), html)
    values.write_text(to_json(asdict(report)), encoding="utf-8")
    return values


def semantic_ids_page(report: SemanticIdReport) -> Page:
    """Build the page of a report."""
    source = ("content embeddings", "")
    if report.is_of_behaviour:
        source = ("a sequence model's item vectors", ", which are assigned by content")
    prefixes = Section(
        key="prefixes",
        title="Prefixes",
        note="Each further code narrows the catalogue; a whole ID is one item.",
        blocks=prefix_charts(report),
    )
    sections = [
        usage_section(report),
        prefixes,
        content_section(report),
        _examples(report),
        _drift(report),
        _provenance(report),
    ]
    return Page(
        title=f"Semantic IDs of {report.title}, version {report.version[:SHORT]}",
        lead=answer(report),
        blocks=[
            Tiles(tiles=version_tiles(report)),
            Words(lines=[MEANING.format(*source)]),
            *sections,
        ],
        notices=notices(report),
    )


def version_tiles(report: SemanticIdReport, *, has_content: bool = True) -> list[Tile]:
    """Show the numbers that are read at a glance."""
    known, quality = report.counts, report.quality
    least = min(level.utilisation for level in quality.published)
    encoded = "by content alone" if report.is_of_behaviour else "as encoded"
    tiles = [
        Tile(
            label="items with an ID",
            value=f"{known.num_with_id:,} of {known.num_items:,}",
            tone="good" if known.num_with_id == known.num_items else "note",
        ),
        Tile(
            label="levels",
            value=levels_text(report.level_sizes),
            note=METHODS.get(report.method, "method not recorded"),
        ),
        Tile(label="codes in use", value=percent(least), note="at the level that uses fewest"),
        Tile(
            label="items that share an ID",
            value=f"{quality.collisions_after:,}",
            note=f"{quality.collisions_before:,} {encoded}" if has_content else "",
            tone="bad" if quality.collisions_after else "good",
        ),
    ]
    if has_content:
        kept = percent(max(0.0, 1 - quality.reconstruction_error))
        note = "of the variance of the content vectors"
        tiles.append(Tile(label="content kept", value=kept, note=note))
    return tiles


def usage_section(report: SemanticIdReport, *, has_content: bool = True) -> Section:
    """Show how many codes are used, and how evenly.

    Args:
        has_content: Whether errors and moved codes were measured.
    """
    quality, levels = report.quality, len(report.level_sizes)
    num_content = report.num_content_levels
    changed = "other by content" if report.is_of_behaviour else "moved by collisions"
    # A level that resolves collisions has no usage of its own.
    largest = [*(usage[0] for usage in report.usage), *([None] * levels)][:levels]
    errors = [*quality.errors_by_level[:num_content], *([None] * levels)][:levels]
    moved = [*(quality.moved[:num_content] if has_content else ()), *([None] * levels)][:levels]
    rows = []
    for place, level in enumerate(quality.published):
        name = level_name(place)
        rows.append(
            (
                name if place < num_content else f"{name}, resolves collisions",
                *(level.size, level.num_used, level.utilisation),
                *(round(level.perplexity, 1), round(level.entropy_bits, 2)),
                *(largest[place], level.num_prefixes, level.purity, errors[place], moved[place]),
            )
        )
    table = Table(
        key="levels",
        title="Codes of each level",
        note="Perplexity is the number of codes used as if evenly: 2 to the power of the entropy. "
        "Purity is the share of items in the commonest main category of their prefix.",
        columns=[
            *texts("level"),
            *counts("codes", "used"),
            *shares("share used"),
            *numbers("perplexity", "entropy (bits)"),
            *counts("items of the largest code", "prefixes"),
            *shares("purity"),
            *numbers(
                "error",
                format="metric",
                note="Of the codes up to this level, squared, over the variance of the content.",
            ),
            *shares(changed, note="Items whose code is not the one that encoding gave."),
        ],
        rows=rows,
    )
    return Section(
        key="codes",
        title="Codes used",
        note="Unused codes waste capacity; very frequent ones carry little information.",
        blocks=[usage_figure(report), table],
    )


def prefix_charts(report: SemanticIdReport, *, has_content: bool = True) -> list[Chart]:
    """Draw how many items share a prefix, and how many shared all codes when encoded."""
    return [depth_figure(report), *([collision_figure(report)] if has_content else [])]


def content_section(report: SemanticIdReport, *, has_content: bool = True) -> Section:
    """Show what prefixes say of content and categories."""
    blocks: list[Block] = [Words(lines=[UNMEASURED], tone="note")]
    if has_content:
        blocks = [neighbour_figure(report), reconstruction_figure(report)]
    purity = purity_figure(report) if len(report.level_sizes) > 1 else None
    if purity is None:
        blocks.append(Words(lines=["Without categories of items, purity cannot be measured."]))
    else:
        blocks.append(purity)
    return Section(
        key="content",
        title="What the codes keep",
        note="Good codes reconstruct the content and give similar items the same prefix. "
        f"{report.num_with_category:,} items have one of {report.num_categories:,} categories; "
        "categories that are part of the encoded text agree more.",
        blocks=blocks,
    )


def marked_id(semantic_id: str, num_shared: int) -> str:
    """Write an ID with its shared codes in brackets, such as ``[12-4]-7``."""
    codes = semantic_id.split("-")
    shared, rest = "-".join(codes[:num_shared]), "-".join(codes[num_shared:])
    return "-".join(filter(None, [f"[{shared}]" if shared else "", rest]))


def _listed(one: Listed) -> Entry:
    note = marked_id(one.semantic_id, one.num_shared)
    return Entry(item_id=f"{one.title} {one.semantic_id}", title=one.title, note=note)


def _example(place: int, example: PrefixExample) -> Section:
    near = sum(1 for one in example.nearest if one.num_shared)
    lists = [
        ItemList(
            title="Nearest by content",
            note=f"{near} of {len(example.nearest)} with its first code",
            entries=[_listed(one) for one in example.nearest],
        )
    ]
    for depth, group in enumerate(example.groups):
        others = "1 other item" if group.num_items == 1 else f"{group.num_items:,} other items"
        longer = ", including those of longer prefixes" if depth and group.num_items else ""
        lists.append(
            ItemList(
                title=f"Same {prefix_name(group.num_shared, 0)}",
                note=f"{others if group.num_items else 'no other item'}{longer}",
                entries=[_listed(one) for one in group.listed],
            )
        )
    events = "" if example.kind == "spread" else f", events: {example.popularity:,}"
    return Section(
        key=f"example-{place}",
        title=f"{example.title[:80]} ({example.semantic_id})",
        note="; ".join([f"{KINDS[example.kind]}{events}", *example.categories[:6]]),
        blocks=[Lists(key=f"lists-{place}", lists=lists, numbered=False)],
    )


def _examples(report: SemanticIdReport) -> Section:
    spread = bool(report.examples) and report.examples[0].kind == "spread"
    chosen = "the most and the least popular items, each with another first code"
    return Section(
        key="examples",
        title="Examples",
        note=f"Chosen by rule: {'items evenly spread over the catalogue' if spread else chosen}. "
        "With good IDs the nearest neighbours by content share its prefixes. Codes shared with "
        "the example are in brackets.",
        blocks=[_example(place, one) for place, one in enumerate(report.examples)],
    )


def _drift(report: SemanticIdReport) -> Section:
    blocks: list[Block] = [Words(lines=[drift_text(report)])]
    blocks += filter(None, [drift_figure(report)])
    if report.drift and report.drift.moved:
        blocks.append(
            Table(
                key="moved",
                title="Items that moved",
                note="The most popular ones by the first level that differs; codes that stayed are "
                "in brackets.",
                columns=texts("item", "before", "after", "neighbours before", "neighbours after"),
                rows=[
                    (
                        one.title,
                        marked_id(one.before, one.num_kept),
                        marked_id(one.after, one.num_kept),
                        "; ".join(one.neighbours_before),
                        "; ".join(one.neighbours_after),
                    )
                    for one in report.drift.moved
                ],
            )
        )
    return Section(key="changes", title="Changes since the previous version", blocks=blocks)


def _provenance(report: SemanticIdReport) -> Section:
    known = report.counts
    content = f" ({known.num_without_content:,} have no content)"
    rows = [
        ("version", report.version),
        ("parent", report.parent or "none"),
        ("made by", HOW.get(report.how, report.how)),
        (
            "method",
            f"{METHODS.get(report.method, report.method)}, levels of "
            f"{levels_text(report.level_sizes)} codes",
        ),
        (
            "source",
            "item vectors of the sequence model; new items by content"
            if report.is_of_behaviour
            else "content",
        ),
        ("quantiser", report.quantizer_digest),
        ("content", report.encoder),
        (
            "items",
            f"{known.num_items:,} in the catalogue: {known.num_with_id:,} with an ID, "
            f"{known.num_without_id:,} without{content if known.num_without_content else ''}",
        ),
        (
            "departed",
            f"{known.num_departed:,} IDs of items that are no longer in the catalogue; they are "
            "not reused",
        ),
        (
            "retired",
            f"{known.num_retired:,} IDs of earlier versions that no item has; they are not reused",
        ),
    ]
    made = Table(key="made", title="Made from", note="", columns=texts("of", "value"), rows=rows)
    settings = Code(key="settings", title="Settings", text=to_json(dict(report.settings)))
    blocks: list[Block] = [made, *([settings] if report.settings else [])]
    return Section(key="provenance", title="Provenance", blocks=blocks)
